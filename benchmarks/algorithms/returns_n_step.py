"""The entry of compute_n_step_returns, with windows of five rewards."""

from __future__ import annotations

import torch

from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, Rollout
from benchmarks.shapes import common_cpu_targets, variant_targets
from benchmarks.whole_arrays import Array, BackwardWindow, Scan

STEPS = 5


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "values": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "n": STEPS,
        "time_dim": rollout.time_dim,
    }
    return arguments | rollout.continuation()


def whole(arguments: Arguments, scan: Scan) -> Array:
    """Windows are no recursion along time, so there is nothing to scan: each pass looks one reward further."""
    window, returns = BackwardWindow(arguments), arguments["values"]
    for _ in range(arguments["n"]):
        continuation = window.continuation(window.following(returns), window.outside())
        returns = arguments["rewards"] + arguments["gamma"] * continuation
    return returns


ENTRIES = (
    Algorithm(
        name="returns-n_step",
        function=imported("rl_triton_returns", "compute_n_step_returns"),
        reference=imported("rl_triton_returns.reference", "compute_n_step_returns"),
        arguments=make_arguments,
        whole=whole,
        bytes_moved=bytes_once,
        bounds_from="H200",
        targets=variant_targets(),
        cpu_targets=common_cpu_targets(),
        safeguards=(),
    ),
)
