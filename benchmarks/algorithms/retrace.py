"""The entry of compute_retrace. Its bounds are microseconds on an H200."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.registry import Algorithm, Arguments, Configuration, Target, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import BOOL_FLAGS, FEW_ACTIONS, common_cpu_targets, device
from benchmarks.variants import starts_at, variant
from benchmarks.whole_arrays import Array, BackwardWindow, Scan, namespace, take


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    """Two independent policies; a configuration that says nothing of actions has a few."""
    rollout = Rollout(replace(configuration, actions=configuration.actions or FEW_ACTIONS), device)
    actions, behavior = rollout.actions(), rollout.policy()
    return {
        "action_probs_target": rollout.policy(),
        "action_probs_behavior": behavior.gather(-1, actions.unsqueeze(-1)).squeeze(-1),
        "q_values": rollout.normal(),
        "next_q_values_all": rollout.normal(rollout.configuration.actions),
        "actions": actions,
        "rewards": rollout.normal(),
        "terminateds": rollout.flags(),
        "truncateds": rollout.flags() if configuration.truncated else None,
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "time_dim": rollout.time_dim,
    }


def whole(arguments: Arguments, scan: Scan) -> tuple[Array, Array]:
    """u[t] is the residual of the action taken; the next step's ratio carries the trace."""
    window, policy = BackwardWindow(arguments), arguments["action_probs_target"]
    xp, stays = namespace(policy), window.interrupted[..., None]
    next_policy = arguments.get("next_action_probs_target")
    if next_policy is None:
        next_policy = xp.where(stays, policy, window.following(policy))
    expected = (next_policy * arguments["next_q_values_all"]).sum(-1)
    taken = take(policy, arguments["actions"][..., None], -1)[..., 0]
    clipped = xp.clip(taken / arguments["action_probs_behavior"], None, 1.0)
    return off_policy_outputs(arguments, window, expected, clipped, clipped, scan)


def off_policy_outputs(
    arguments: Arguments, window: BackwardWindow, expected: Array, trace: Array, weight: Array | float, scan: Scan
) -> tuple[Array, Array]:
    """Targets and advantages, from what follows a step, what carries a trace, and what weighs an advantage."""
    gamma, q_values, rewards = arguments["gamma"], arguments["q_values"], arguments["rewards"]
    u = rewards + gamma * window.continuation(expected, expected) - q_values
    targets = q_values + window.scan(u, gamma * arguments["lambda_"] * window.following(trace), scan)
    if arguments.get("values") is not None:
        return targets, weight * (targets - arguments["values"])
    following = window.continuation(window.following(targets), expected)
    return targets, weight * (rewards + gamma * following - q_values)


def with_actions(rows: int, steps: int, actions: int, bound: float | None = None, *, quick: bool = False) -> Target:
    return device(rows, steps, {**BOOL_FLAGS, "actions": actions}, bound, quick=quick)


TARGETS = (
    Target(Configuration(4096, 128, actions=4), "full call", of_add=1.5, quick=True),
    Target(Configuration(4096, 128, actions=4), "amortised", of_add=1.5, quick=True),
    with_actions(4096, 128, 4, 10.0, quick=True),
    with_actions(4096, 128, 18, 29.0),
    with_actions(4096, 128, 128, 145.0, quick=True),
    with_actions(512, 128, 1000),
    with_actions(512, 2048, 4, 22.0),
    with_actions(512, 4096, 4, 42.0),
    with_actions(128, 8192, 4, 24.0),
    with_actions(16384, 512, 4),
    with_actions(32768, 8, 4),
    with_actions(64, 32768, 4, quick=True),
    with_actions(1, 1048576, 4),
    device(4096, 128, {"time_major": True, "actions": 4}, quick=True),
)

SAFEGUARDS = (
    Target(Configuration(4096, 128, actions=4), "full call", of_add=2.2),
    Target(Configuration(4096, 128, actions=128), "device", of_copy=0.7),
    Target(Configuration(512, 2048, actions=4), "device", of_copy=0.5),
)

RETRACE = Algorithm(
    name="retrace",
    function=imported("rl_triton_retrace", "compute_retrace"),
    reference=imported("rl_triton_retrace.reference", "compute_retrace"),
    arguments=make_arguments,
    whole=whole,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=TARGETS,
    cpu_targets=common_cpu_targets(actions=FEW_ACTIONS),
    actions=FEW_ACTIONS,
    safeguards=SAFEGUARDS,
)


def next_policy(rollout: Rollout, given: Arguments) -> Arguments:
    """The policy at every next state, which spares a look at the next step's."""
    probabilities = given["action_probs_target"]
    return {"next_action_probs_target": rollout.normal(probabilities.shape[-1]).float().softmax(-1).to(probabilities)}


ENTRIES = (
    RETRACE,
    variant(RETRACE, "values", lambda rollout, given: {"values": rollout.normal()}),
    variant(RETRACE, "next_policy", next_policy),
    variant(RETRACE, "starts_at", starts_at),
)
