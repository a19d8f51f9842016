"""The entry of compute_eligibility_traces. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch

from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets
from benchmarks.variants import option, variant
from benchmarks.whole_arrays import Array, Scan, by_forward_scan, namespace


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


def whole(arguments: Arguments, scan: Scan) -> Array:
    x, decay = arguments["gradients"], arguments["gamma"] * arguments["lambda_"]
    if arguments.get("kind") == "replacing":
        decay = namespace(x).where(x == 0, decay, 0.0 * x)
    elif arguments.get("kind") == "dutch":
        decay = decay * (1 - arguments["alpha"] * x)
    return by_forward_scan(x, decay, arguments, scan, arguments.get("ratios", 1.0))


TRACES = Algorithm(
    name="traces",
    function=imported("rl_triton_traces", "compute_eligibility_traces"),
    reference=imported("rl_triton_traces.reference", "compute_eligibility_traces"),
    arguments=make_arguments,
    whole=whole,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.0),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)

ENTRIES = (
    TRACES,
    variant(TRACES, "replacing", option(kind="replacing")),
    variant(TRACES, "dutch", option(kind="dutch", alpha=0.1)),
    variant(TRACES, "ratios", lambda rollout, given: {"ratios": rollout.ratios()}),
)
