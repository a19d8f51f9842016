"""The entry of compute_discounted_returns. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch

from benchmarks.packing import packed
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets
from benchmarks.variants import masked, starts_at, variant
from benchmarks.whole_arrays import Array, BackwardWindow, Scan


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "time_dim": rollout.time_dim,
    }
    return arguments | rollout.continuation()


def whole(arguments: Arguments, scan: Scan) -> Array:
    """u[t] is the reward, and the value of what follows outside the window."""
    window, gamma, rewards = BackwardWindow(arguments), arguments["gamma"], arguments["rewards"]
    u = rewards + gamma * window.continuation(0.0 * rewards, window.outside())
    return window.at_valid(window.scan(u, gamma, scan))


RETURNS = Algorithm(
    name="returns",
    function=imported("rl_triton_returns", "compute_discounted_returns"),
    reference=imported("rl_triton_returns.reference", "compute_discounted_returns"),
    arguments=make_arguments,
    whole=whole,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
ENTRIES = (
    RETURNS,
    variant(RETURNS, "mask", masked),
    variant(RETURNS, "starts_at", starts_at),
    packed(RETURNS),
)
