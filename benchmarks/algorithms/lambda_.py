"""The entry of compute_lambda_returns. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch

from benchmarks import torchrl_calls
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets
from benchmarks.variants import masked, starts_at, variant
from benchmarks.whole_arrays import Array, BackwardWindow, Scan


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "next_values": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "time_dim": rollout.time_dim,
    }
    if configuration.truncated:
        return {**arguments, "truncateds": rollout.flags(), "bootstrap_values": rollout.normal()}
    return arguments


def whole(arguments: Arguments, scan: Scan) -> Array:
    """u[t] is the reward, and of the next value the part that no later return replaces."""
    window, gamma, lambda_ = BackwardWindow(arguments), arguments["gamma"], arguments["lambda_"]
    next_values = arguments["next_values"]
    outside = window.outside() if "bootstrap_values" in arguments else next_values
    u = arguments["rewards"] + gamma * window.continuation((1 - lambda_) * next_values, outside)
    return window.at_valid(window.scan(u, gamma * lambda_, scan))


LAMBDA_RETURNS = Algorithm(
    name="lambda",
    function=imported("rl_triton_lambda", "compute_lambda_returns"),
    reference=imported("rl_triton_lambda.reference", "compute_lambda_returns"),
    arguments=make_arguments,
    whole=whole,
    torchrl=torchrl_calls.lambda_returns,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)

ENTRIES = (
    LAMBDA_RETURNS,
    variant(LAMBDA_RETURNS, "mask", masked),
    variant(LAMBDA_RETURNS, "starts_at", starts_at),
)
