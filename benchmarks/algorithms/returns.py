"""The entry of compute_discounted_returns. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "time_dim": rollout.time_dim,
    }
    return arguments | rollout.continuation()


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
    function=imported("rl_triton_returns", "compute_discounted_returns"),
    reference=imported("rl_triton_returns.reference", "compute_discounted_returns"),
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
