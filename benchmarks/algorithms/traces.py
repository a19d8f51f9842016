"""The entry of compute_eligibility_traces. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.oracle import forward_scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    return {
        "gradients": rollout.normal(),
        "dones": rollout.flags(),
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "seed_values": rollout.per_row(),
        "time_dim": rollout.time_dim,
    }


def vectorised(arguments: Arguments) -> Tensor:
    return forward_scan_by_doubling(
        arguments["gradients"],
        arguments["dones"],
        arguments["gamma"] * arguments["lambda_"],
        arguments["seed_values"],
        arguments["time_dim"],
    )


ENTRY = Algorithm(
    name="traces",
    function=imported("rl_triton_traces", "compute_eligibility_traces"),
    reference=imported("rl_triton_traces.reference", "compute_eligibility_traces"),
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.0),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
