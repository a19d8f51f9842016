"""Retrace(lambda) as it is defined: a loop from the last step to the first.

Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning", 2016, equations 3 and 4, as a recursion:

    expected[t]   = sum over a of pi(a|s_{t+1}) * Q(s_{t+1}, a)
    delta[t]      = rewards[t] + gamma * expected[t] - Q(s_t, a_t)
    D[t]          = delta[t] + gamma * lambda_ * min(c_bar, ratio[t+1]) * D[t+1],    ratio = pi(a|s) / mu(a|s)
    targets[t]    = Q(s_t, a_t) + D[t]
    advantages[t] = min(rho_bar, ratio[t]) * (rewards[t] + gamma * q[t] - Q(s_t, a_t))

With continuous actions the expectation is given, and D is carried back by c[t+1] in place of lambda_ * min: one of the
four traces of section 3 there, each with a factor of lambda_.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from rl_triton_core.reference import boundaries
from torch import Tensor


def compute_retrace(
    action_probs_target: Tensor,
    action_probs_behavior: Tensor,
    q_values: Tensor,
    next_q_values_all: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    gamma: float | Tensor,
    lambda_: float | Tensor = 1.0,
    c_bar: float | None = 1.0,
    rho_bar: float | None = 1.0,
    *,
    next_action_probs_target: Tensor | None = None,
    values: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Any = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Targets and advantages, step by step in `dtype`. Arguments as for `rl_triton_retrace.compute_retrace`."""
    dim = time_dim % rewards.dim()

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(dim, 0).to(dtype)

    policy, behavior, q, next_q = map(
        per_step, (action_probs_target, action_probs_behavior, q_values, next_q_values_all)
    )
    r, chosen = per_step(rewards), actions.movedim(dim, 0).long()
    found = boundaries(terminateds, truncateds, boundary, next_start, dim)
    terminated, truncated = found.terminated, found.truncated
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    steps, count = r.shape[0], policy.shape[-1]

    # Probability of the action taken, NaN where there is no such action.
    exists = (chosen >= 0) & (chosen < count)
    probability = policy.gather(-1, torch.where(exists, chosen, 0).unsqueeze(-1)).squeeze(-1)
    ratio = torch.where(exists, probability, math.nan) / behavior
    trace = ratio.clamp(max=math.inf if c_bar is None else c_bar)
    rho = ratio.clamp(max=math.inf if rho_bar is None else rho_bar)

    D, targets, advantages = list(r), list(r), list(r)
    for t in reversed(range(steps)):
        last = t == steps - 1

        # pi(.|s_{t+1}): where the window does not hold it, the policy at s_t stands in.
        if next_action_probs_target is not None and next_action_probs_target.dim() > rewards.dim():
            next_policy = per_step(next_action_probs_target)[t]
        elif not last:
            next_policy = torch.where(truncated[t].unsqueeze(-1), policy[t], policy[t + 1])
        elif next_action_probs_target is not None:
            next_policy = next_action_probs_target.to(dtype)
        else:
            next_policy = policy[t]
        expected = torch.where(next_policy == 0, 0.0, next_policy * next_q[t]).sum(-1)

        delta = torch.where(terminated[t], r[t] - q[t], r[t] + discount[t] * expected - q[t])
        if last:
            following, D[t] = expected, delta
        else:
            following = torch.where(truncated[t], expected, targets[t + 1])
            traced = delta + discount[t] * mixing[t] * trace[t + 1] * D[t + 1]
            D[t] = torch.where(terminated[t] | truncated[t], delta, traced)
        targets[t] = q[t] + D[t]

        if values is not None:
            advantages[t] = rho[t] * (targets[t] - per_step(values)[t])
        else:
            residual = torch.where(terminated[t], r[t] - q[t], r[t] + discount[t] * following - q[t])
            advantages[t] = rho[t] * residual
    if not steps:
        return torch.empty_like(r).movedim(0, dim), torch.empty_like(r).movedim(0, dim)
    return torch.stack(targets).movedim(0, dim), torch.stack(advantages).movedim(0, dim)


def compute_retrace_continuous(
    log_pi_target: Tensor | None,
    log_pi_behavior: Tensor | None,
    q_values: Tensor,
    next_values: Tensor,
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    gamma: float | Tensor,
    lambda_: float | Tensor = 1.0,
    c_bar: float | None = 1.0,
    rho_bar: float | None = 1.0,
    *,
    trace: str = "retrace",
    values: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """As for `rl_triton_retrace.compute_retrace_continuous`, step by step in `dtype`."""
    dim = time_dim % rewards.dim()

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(dim, 0).to(dtype)

    r, q, expected = map(per_step, (rewards, q_values, next_values))
    terminated = terminateds.movedim(dim, 0) != 0
    truncated = torch.zeros_like(terminated) if truncateds is None else truncateds.movedim(dim, 0) != 0
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    steps = r.shape[0]

    ratio = rho = torch.ones_like(r)
    if log_pi_behavior is not None:
        assert log_pi_target is not None
        ratio = torch.exp(per_step(log_pi_target) - per_step(log_pi_behavior))
        rho = ratio.clamp(max=math.inf if rho_bar is None else rho_bar)
    if trace == "retrace":
        c = ratio.clamp(max=math.inf if c_bar is None else c_bar)
    elif trace == "importance":
        c = ratio
    elif trace == "tree_backup":
        assert log_pi_target is not None
        c = torch.exp(per_step(log_pi_target))
    else:
        c = torch.ones_like(r)

    D, targets, advantages = list(r), list(r), list(r)
    for t in reversed(range(steps)):
        last = t == steps - 1
        ended = terminated[t] | truncated[t]
        delta = torch.where(terminated[t], r[t] - q[t], r[t] + discount[t] * expected[t] - q[t])
        # lambda[t] belongs to the transition from t to t + 1, and so to the trace of t + 1.
        D[t] = delta if last else torch.where(ended, delta, delta + discount[t] * mixing[t] * c[t + 1] * D[t + 1])
        targets[t] = q[t] + D[t]
        if values is not None:
            advantages[t] = rho[t] * (targets[t] - per_step(values)[t])
        else:
            inside = delta if last else r[t] + discount[t] * targets[t + 1] - q[t]
            advantages[t] = rho[t] * torch.where(ended, delta, inside)
    if not steps:
        return torch.empty_like(r).movedim(0, dim), torch.empty_like(r).movedim(0, dim)
    return torch.stack(targets).movedim(0, dim), torch.stack(advantages).movedim(0, dim)
