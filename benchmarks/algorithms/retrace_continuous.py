"""The entries of compute_retrace_continuous, one per trace."""

from __future__ import annotations

import torch

from benchmarks.algorithms.retrace import off_policy_outputs
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import variant_cpu_targets, variant_targets
from benchmarks.variants import option, variant
from benchmarks.whole_arrays import Array, BackwardWindow, Scan, namespace


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    log_pi_target, log_pi_behavior = rollout.log_probabilities()
    return {
        "log_pi_target": log_pi_target,
        "log_pi_behavior": log_pi_behavior,
        "q_values": rollout.normal(),
        "next_values": rollout.normal(),
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "truncateds": rollout.flags() if configuration.truncated else None,
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "time_dim": rollout.time_dim,
    }


def whole(arguments: Arguments, scan: Scan) -> tuple[Array, Array]:
    """The expectations are given; what carries a trace depends on its kind."""
    window, kind = BackwardWindow(arguments), arguments.get("trace", "retrace")
    xp = namespace(arguments["rewards"])
    trace = weight = xp.ones_like(arguments["rewards"])
    if arguments["log_pi_behavior"] is not None:
        ratio = xp.exp(arguments["log_pi_target"] - arguments["log_pi_behavior"])
        weight = xp.clip(ratio, None, 1.0)
        trace = ratio if kind == "importance" else weight
    elif kind == "tree_backup":
        trace = xp.exp(arguments["log_pi_target"])
    return off_policy_outputs(arguments, window, arguments["next_values"], trace, weight, scan)


RETRACE = Algorithm(
    name="retrace-continuous",
    function=imported("rl_triton_retrace", "compute_retrace_continuous"),
    reference=imported("rl_triton_retrace.reference", "compute_retrace_continuous"),
    arguments=make_arguments,
    whole=whole,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=variant_targets(),
    cpu_targets=variant_cpu_targets(),
    safeguards=(),
)
ENTRIES = (
    RETRACE,
    variant(RETRACE, "importance", option(trace="importance")),
    variant(RETRACE, "harutyunyan", option(trace="harutyunyan", log_pi_target=None, log_pi_behavior=None)),
    variant(RETRACE, "tree_backup", option(trace="tree_backup", log_pi_behavior=None)),
)
