"""V-trace as it is defined: a loop from the last step to the first.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures", 2018:
equation 1 as the recursion of its remark 1, lambda as in remark 2, and the advantage of section 4.2:

    ratio[t]      = exp(log_pi_target[t] - log_pi_behavior[t])
    delta[t]      = min(rho_bar, ratio[t]) * (rewards[t] + gamma * continuation[t] - values[t])
    D[t]          = delta[t] + gamma * lambda_ * min(c_bar, ratio[t]) * D[t+1]
    targets[t]    = values[t] + D[t]
    advantages[t] = min(pg_rho_bar, ratio[t]) * (rewards[t] + gamma * q[t] - values[t])
    q[t]          = (1 - lambda_) * continuation[t] + lambda_ * targets[t+1]
"""

from __future__ import annotations

import math
from typing import Any

import torch
from rl_triton_core.reference import ended_steps
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
    boundary: str = "ends_at",
    next_start: Any = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Targets and advantages, step by step in `dtype`. Arguments as for `rl_triton_vtrace.compute_vtrace`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r, v = per_step(rewards), per_step(values)
    terminated, truncated = ended_steps(terminateds, truncateds, boundary, next_start, time_dim)
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    ratio = torch.exp(per_step(log_pi_target) - per_step(log_pi_behavior))
    rho = ratio.clamp(max=math.inf if rho_bar is None else rho_bar)
    c = ratio.clamp(max=math.inf if c_bar is None else c_bar)
    pg_rho = rho if pg_rho_bar is None else ratio.clamp(max=pg_rho_bar)
    steps = r.shape[0]
    if steps == 0:
        return torch.empty_like(r).movedim(0, time_dim), torch.empty_like(r).movedim(0, time_dim)

    D, targets, advantages = list(r), list(r), list(r)
    for t in reversed(range(steps)):
        last = t == steps - 1
        nothing = torch.zeros_like(r[t])

        # What follows s_t if its episode did not terminate.
        if next_values is not None:
            continuation = per_step(next_values)[t]
        else:
            interrupted = nothing if bootstrap_values is None else per_step(bootstrap_values)[t]
            if last:
                continuation = interrupted if last_value is None else last_value.to(dtype)
            else:
                continuation = torch.where(truncated[t], interrupted, v[t + 1])

        residual = torch.where(terminated[t], r[t] - v[t], r[t] + discount[t] * continuation - v[t])
        delta = rho[t] * residual
        if last:
            D[t] = delta
            q = continuation
        else:
            ended = terminated[t] | truncated[t]
            D[t] = torch.where(ended, delta, delta + discount[t] * mixing[t] * c[t] * D[t + 1])
            q = torch.where(ended, continuation, (1 - mixing[t]) * continuation + mixing[t] * targets[t + 1])
        targets[t] = v[t] + D[t]
        advantages[t] = pg_rho[t] * torch.where(terminated[t], r[t] - v[t], r[t] + discount[t] * q - v[t])
    return torch.stack(targets).movedim(0, time_dim), torch.stack(advantages).movedim(0, time_dim)
