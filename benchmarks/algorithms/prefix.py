"""The entry of compute_episodic_prefix_sum. Its bounds are microseconds on an H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once
from benchmarks.rollouts import Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def function() -> Callable[..., Any]:
    from rl_triton_prefix import compute_episodic_prefix_sum

    return compute_episodic_prefix_sum


def reference() -> Callable[..., Any]:
    from rl_triton_prefix.reference import compute_episodic_prefix_sum

    return compute_episodic_prefix_sum


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    return {
        "inputs": rollout.normal(),
        "dones": rollout.flags(),
        "seed_values": rollout.per_row(),
        "time_dim": rollout.time_dim,
    }


def vectorised(arguments: Arguments) -> Tensor:
    """C[t] = u[t] + w[t] * C[t-1], turned around in time."""
    dim, x = arguments["time_dim"], arguments["inputs"]
    done_before = (arguments["dones"] != 0).roll(1, dim)
    done_before.select(dim, 0).fill_(False)
    w = torch.where(done_before, 0.0, torch.full_like(x, 1.0))
    u = x.clone()
    u.select(dim, 0).add_(w.select(dim, 0) * arguments["seed_values"])
    return scan_by_doubling(u.flip(dim), w.flip(dim), dim).flip(dim)


ENTRY = Algorithm(
    name="prefix",
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
