"""The entry of compute_vtrace. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch

from benchmarks import torchrl_calls
from benchmarks.packing import packed
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets
from benchmarks.variants import masked, option, starts_at, variant
from benchmarks.whole_arrays import Array, BackwardWindow, Scan, namespace


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    log_pi_target, log_pi_behavior = rollout.log_probabilities()
    arguments: Arguments = {
        "log_pi_target": log_pi_target,
        "log_pi_behavior": log_pi_behavior,
        "values": rollout.normal(),
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "time_dim": rollout.time_dim,
    }
    return arguments | rollout.continuation()


def whole(arguments: Arguments, scan: Scan) -> tuple[Array, Array]:
    """u[t] is the weighted residual of the value function; the advantages look at the next target."""
    window, gamma = BackwardWindow(arguments), arguments["gamma"]
    values, rewards = arguments["values"], arguments["rewards"]
    continuation = window.continuation(window.following(values), window.outside())
    xp, log_ratio = namespace(values), arguments["log_pi_target"] - arguments["log_pi_behavior"]
    ratio, leak = xp.exp(log_ratio), arguments.get("leak", 0.0)
    weight = leak * ratio + (1 - leak) * xp.clip(ratio, None, 1.0)
    u = weight * (rewards + gamma * continuation - values)
    targets = values + window.scan(u, gamma * weight, scan)
    following = window.continuation(window.following(targets), window.outside())
    return window.at_valid(targets, weight * (rewards + gamma * following - values))


VTRACE = Algorithm(
    name="vtrace",
    function=imported("rl_triton_vtrace", "compute_vtrace"),
    reference=imported("rl_triton_vtrace.reference", "compute_vtrace"),
    arguments=make_arguments,
    whole=whole,
    torchrl=torchrl_calls.vtrace,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)

ENTRIES = (
    VTRACE,
    variant(VTRACE, "leak", option(leak=0.1)),
    variant(VTRACE, "mask", masked),
    variant(VTRACE, "starts_at", starts_at),
    packed(VTRACE),
)
