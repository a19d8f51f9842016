"""The entry of compute_vtrace. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    """Two policies that differ as much as they do after a few updates."""
    rollout = Rollout(configuration, device)
    log_pi = -rollout.normal().abs()
    arguments: Arguments = {
        "log_pi_target": log_pi,
        "log_pi_behavior": log_pi + 0.2 * rollout.normal(),
        "values": rollout.normal(),
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "time_dim": rollout.time_dim,
    }
    return arguments | rollout.continuation()


def vectorised(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """D[t] = u[t] + w[t] * D[t+1] with all of u and w at hand, and what both outputs make of it."""
    dim, gamma, values, rewards = (arguments[name] for name in ("time_dim", "gamma", "values", "rewards"))
    terminated = ended = arguments["terminateds"] != 0
    last_column = torch.zeros_like(terminated)
    last_column.select(dim, -1).fill_(True)
    interrupted = last_column
    continuation = values.roll(-1, dim)
    if "truncateds" in arguments:
        truncated = arguments["truncateds"] != 0
        interrupted, ended = interrupted | truncated, ended | truncated
        continuation = torch.where(interrupted, arguments["bootstrap_values"], continuation)
    else:
        continuation = torch.where(last_column, arguments["last_value"].unsqueeze(dim), continuation)
    continuation = torch.where(terminated, 0.0, continuation)
    ratio = (arguments["log_pi_target"] - arguments["log_pi_behavior"]).exp().clamp(max=1.0)
    u = ratio * (rewards + gamma * continuation - values)
    targets = values + scan_by_doubling(u, torch.where(ended, 0.0, gamma * ratio), dim)
    following = torch.where(interrupted | terminated, continuation, targets.roll(-1, dim))
    return targets, ratio * (rewards + gamma * following - values)


ENTRY = Algorithm(
    name="vtrace",
    function=imported("rl_triton_vtrace", "compute_vtrace"),
    reference=imported("rl_triton_vtrace.reference", "compute_vtrace"),
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
