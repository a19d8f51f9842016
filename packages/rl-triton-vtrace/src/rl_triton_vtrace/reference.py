"""V-trace as it is defined: a loop from the last step to the first.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", 2018:
equation 1 as the recursion of its remark 1, lambda as in remark 2, and the advantage of section 4.2:

    ratio[t]      = exp(log_pi_target[t] - log_pi_behavior[t])
    delta[t]      = min(rho_bar, ratio[t]) * (rewards[t] + gamma * continuation[t] - values[t])
    D[t]          = delta[t] + gamma * lambda_ * min(c_bar, ratio[t]) * D[t+1]
    targets[t]    = values[t] + D[t]
    advantages[t] = min(pg_rho_bar, ratio[t]) * (rewards[t] + gamma * q[t] - values[t])
    q[t]          = (1 - lambda_) * continuation[t] + lambda_ * targets[t+1]

Leaky V-trace, of Zahavy et al., "A Self-Tuning Actor-Critic Algorithm", 2020, puts leak * ratio + (1 - leak) * min in
the place of every minimum; their alpha is 1 - leak.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from rl_triton_core.reference import boundaries
from torch import Tensor


def compute_vtrace(
    log_pi_target: Tensor,
    log_pi_behavior: Tensor,
    values: Tensor,
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    rho_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    lambda_: float | Tensor = 1.0,
    pg_rho_bar: float | None = None,
    leak: float = 0.0,
    boundary: str = "ends_at",
    next_start: Any = None,
    mask: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Targets and advantages, step by step in `dtype`. Arguments as for `rl_triton_vtrace.compute_vtrace`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r, v = per_step(rewards), per_step(values)
    found = boundaries(terminateds, truncateds, boundary, next_start, time_dim, mask)
    terminated = found.terminated
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    ratio = torch.exp(per_step(log_pi_target) - per_step(log_pi_behavior))

    def weight(bound: float | None) -> Tensor:
        clipped = ratio.clamp(max=math.inf if bound is None else bound)
        # Where nothing leaks, an infinite ratio is its clip, not NaN; without a clip, the mixture is of one number.
        return clipped if leak == 0 or bound in (None, math.inf) else leak * ratio + (1 - leak) * clipped

    rho, c = weight(rho_bar), weight(c_bar)
    pg_rho = rho if pg_rho_bar is None else weight(pg_rho_bar)
    steps = r.shape[0]
    if steps == 0:
        return torch.empty_like(r).movedim(0, time_dim), torch.empty_like(r).movedim(0, time_dim)

    targets, advantages = list(r), list(r)
    # Of the next valid step.
    next_value = next_D = torch.zeros_like(r[0])
    for t in reversed(range(steps)):
        continuation = found.continuation(t, next_value, bootstrap_values, last_value, next_values, time_dim)
        residual = torch.where(terminated[t], r[t] - v[t], r[t] + discount[t] * continuation - v[t])
        delta = rho[t] * residual
        ended = terminated[t] | found.interrupted(t)
        D = torch.where(ended, delta, delta + discount[t] * mixing[t] * c[t] * next_D)
        mixed = (1 - mixing[t]) * continuation + mixing[t] * (next_value + next_D)
        q = torch.where(ended, continuation, mixed)
        advantage = pg_rho[t] * torch.where(terminated[t], r[t] - v[t], r[t] + discount[t] * q - v[t])
        targets[t] = torch.where(found.valid[t], v[t] + D, 0.0)
        advantages[t] = torch.where(found.valid[t], advantage, 0.0)
        next_value = found.following(t, v[t], next_value)
        next_D = found.following(t, D, next_D)
    return torch.stack(targets).movedim(0, time_dim), torch.stack(advantages).movedim(0, time_dim)
