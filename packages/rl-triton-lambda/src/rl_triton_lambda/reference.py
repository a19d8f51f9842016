"""The lambda-return as it is defined: a loop from the last step to the first.

Sutton & Barto, "Reinforcement Learning: An Introduction", second edition, 2018, equation 12.18, with a value of the
next state for the last column and at truncations:

    G[t] = rewards[t] + gamma * ((1 - lambda_) * next_values[t] + lambda_ * G[t+1])
"""

from __future__ import annotations

from typing import Any

import torch
from rl_triton_core.reference import at, boundaries
from torch import Tensor


def compute_lambda_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    lambda_: float | Tensor = 0.95,
    bootstrap_values: Tensor | None = None,
    *,
    boundary: str = "ends_at",
    next_start: Any = None,
    mask: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The returns, step by step in `dtype`. Arguments as for `rl_triton_lambda.compute_lambda_returns`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r, next_value = per_step(rewards), per_step(next_values)
    found = boundaries(terminateds, truncateds, boundary, next_start, time_dim, mask)
    terminated = found.terminated
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    steps = r.shape[0]

    returns = list(r)
    # Of the next valid step.
    next_return = torch.zeros_like(r[0]) if steps else r
    for t in reversed(range(steps)):
        # What follows s_t if its episode did not terminate.
        if bootstrap_values is None:
            outside = at(next_value, found.own[t])
        else:
            outside = at(per_step(bootstrap_values), found.source[t])
        mixed = (1 - mixing[t]) * next_value[t] + mixing[t] * next_return
        following = torch.where(found.interrupted(t), outside, mixed)
        result = torch.where(terminated[t], r[t], r[t] + discount[t] * following)
        returns[t] = torch.where(found.valid[t], result, 0.0)
        next_return = found.following(t, result, next_return)
    return torch.stack(returns).movedim(0, time_dim) if returns else torch.empty_like(r).movedim(0, time_dim)
