"""The entry of compute_episodic_prefix_sum. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch

from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets
from benchmarks.variants import starts_at, variant
from benchmarks.whole_arrays import Array, Scan, by_forward_scan


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    return {
        "inputs": rollout.normal(),
        "dones": rollout.flags(),
        "seed_values": rollout.per_row(),
        "time_dim": rollout.time_dim,
    }


def whole(arguments: Arguments, scan: Scan) -> Array:
    return by_forward_scan(arguments["inputs"], 1.0, arguments, scan)


PREFIX_SUM = Algorithm(
    name="prefix",
    function=imported("rl_triton_prefix", "compute_episodic_prefix_sum"),
    reference=imported("rl_triton_prefix.reference", "compute_episodic_prefix_sum"),
    arguments=make_arguments,
    whole=whole,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.0),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)

ENTRIES = (PREFIX_SUM, variant(PREFIX_SUM, "starts_at", starts_at))
