"""The entry of compute_eligibility_traces. Its bounds are microseconds on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def function() -> Callable[..., Any]:
    from rl_triton_traces import compute_eligibility_traces

    return compute_eligibility_traces


def reference() -> Callable[..., Any]:
    from rl_triton_traces.reference import compute_eligibility_traces

    return compute_eligibility_traces


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
    """z[t] = u[t] + w[t] * z[t-1], turned around in time."""
    dim, x = arguments["time_dim"], arguments["gradients"]
    done_before = (arguments["dones"] != 0).roll(1, dim)
    done_before.select(dim, 0).fill_(False)
    w = torch.where(done_before, 0.0, torch.full_like(x, arguments["gamma"] * arguments["lambda_"]))
    u = x.clone()
    u.select(dim, 0).add_(w.select(dim, 0) * arguments["seed_values"])
    return scan_by_doubling(u.flip(dim), w.flip(dim), dim).flip(dim)


ENTRY = Algorithm(
    name="traces",
    function=function,
    reference=reference,
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.0),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
