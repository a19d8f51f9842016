"""The entry of compute_retrace. Its bounds are microseconds on an H200."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, Target, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import BOOL_FLAGS, common_cpu_targets, device

FEW_ACTIONS = 4


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


def vectorised(arguments: Arguments) -> tuple[Tensor, Tensor]:
    """D[t] = u[t] + w[t] * D[t+1] with all of u and w at hand, and what both outputs make of it."""
    dim, gamma, lambda_ = arguments["time_dim"], arguments["gamma"], arguments["lambda_"]
    policy, q_values, rewards = arguments["action_probs_target"], arguments["q_values"], arguments["rewards"]
    terminated = ended = arguments["terminateds"] != 0
    interrupted = torch.zeros_like(terminated)
    interrupted.select(dim, -1).fill_(True)
    if arguments["truncateds"] is not None:
        truncated = arguments["truncateds"] != 0
        interrupted, ended = interrupted | truncated, ended | truncated
    next_policy = torch.where(interrupted.unsqueeze(-1), policy, policy.roll(-1, dim))
    expected = torch.where(terminated, 0.0, (next_policy * arguments["next_q_values_all"]).sum(-1))
    taken = policy.gather(-1, arguments["actions"].unsqueeze(-1)).squeeze(-1)
    clipped = (taken / arguments["action_probs_behavior"]).clamp(max=1.0)
    u = rewards + gamma * expected - q_values
    w = torch.where(ended, 0.0, gamma * lambda_ * clipped.roll(-1, dim))
    targets = q_values + scan_by_doubling(u, w, dim)
    following = torch.where(interrupted | terminated, expected, targets.roll(-1, dim))
    return targets, clipped * (rewards + gamma * following - q_values)


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

ENTRY = Algorithm(
    name="retrace",
    function=imported("rl_triton_retrace", "compute_retrace"),
    reference=imported("rl_triton_retrace.reference", "compute_retrace"),
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=TARGETS,
    cpu_targets=common_cpu_targets(),
    safeguards=SAFEGUARDS,
)
