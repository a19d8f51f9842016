"""Generalised Advantage Estimation as it is defined: a loop from the last step to the first.

Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2015, equation 16,
as a recursion:

    delta[t] = rewards[t] + gamma * continuation[t] - values[t]
    A[t]     = delta[t] + gamma * lambda_ * A[t+1]
"""

from __future__ import annotations

from typing import Any

import torch
from rl_triton_core.reference import ended_steps
from torch import Tensor


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    lambda_: float | Tensor = 0.95,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    return_targets: bool = False,
    boundary: str = "ends_at",
    next_start: Any = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor | tuple[Tensor, Tensor]:
    """The advantages, and targets where asked for, step by step in `dtype`. Arguments as for `compute_gae`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r, v = per_step(rewards), per_step(values)
    terminated, truncated = ended_steps(terminateds, truncateds, boundary, next_start, time_dim)
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    steps = r.shape[0]

    advantages = list(r)
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

        delta = torch.where(terminated[t], r[t] - v[t], r[t] + discount[t] * continuation - v[t])
        if last:
            advantages[t] = delta
        else:
            ended = terminated[t] | truncated[t]
            advantages[t] = torch.where(ended, delta, delta + discount[t] * mixing[t] * advantages[t + 1])
    result = torch.stack(advantages).movedim(0, time_dim) if advantages else torch.empty_like(r).movedim(0, time_dim)
    return (result, result + values.to(dtype)) if return_targets else result
