"""The entry of compute_discounted_returns. Its bounds are microseconds on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once
from benchmarks.rollouts import GAMMA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def function() -> Callable[..., Any]:
    from rl_triton_returns import compute_discounted_returns

    return compute_discounted_returns


def reference() -> Callable[..., Any]:
    from rl_triton_returns.reference import compute_discounted_returns

    return compute_discounted_returns


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "time_dim": rollout.time_dim,
    }
    if configuration.truncated:
        return {**arguments, "truncateds": rollout.flags(), "bootstrap_values": rollout.normal()}
    return {**arguments, "last_value": rollout.per_row()}


def vectorised(arguments: Arguments) -> Tensor:
    """G[t] = u[t] + w[t] * G[t+1] with all of u and w at hand."""
    dim, gamma, rewards = arguments["time_dim"], arguments["gamma"], arguments["rewards"]
    terminated = ended = arguments["terminateds"] != 0
    continuation = torch.zeros_like(rewards)
    if "truncateds" in arguments:
        truncated = arguments["truncateds"] != 0
        continuation = torch.where(truncated, arguments["bootstrap_values"], 0.0)
        ended = ended | truncated
        last = arguments["bootstrap_values"].select(dim, -1)
    else:
        last = arguments["last_value"]
    continuation.select(dim, -1).copy_(last)
    u = rewards + gamma * torch.where(terminated, 0.0, continuation)
    w = torch.where(ended, 0.0, torch.full_like(u, gamma))
    return scan_by_doubling(u, w, dim)


ENTRY = Algorithm(
    name="returns",
    function=function,
    reference=reference,
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
