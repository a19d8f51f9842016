"""The discounted return as it is defined: a loop from the last step to the first.

Sutton & Barto, "Reinforcement Learning: An Introduction", second edition, 2018, equation 3.9, with a value of the next
state where an episode goes on outside the window:

    G[t] = rewards[t] + gamma * G[t+1]
"""

from __future__ import annotations

from typing import Any

import torch
from rl_triton_core.reference import at, boundaries
from torch import Tensor


def compute_discounted_returns(
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    bootstrap_values: Tensor | None = None,
    *,
    last_value: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Any = None,
    mask: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The returns, step by step in `dtype`. Arguments as for `rl_triton_returns.compute_discounted_returns`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r = per_step(rewards)
    found = boundaries(terminateds, truncateds, boundary, next_start, time_dim, mask)
    terminated, truncated = found.terminated, found.truncated
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    steps = r.shape[0]

    returns = list(r)
    # Of the next valid step.
    next_return = torch.zeros_like(r[0]) if steps else r
    for t in reversed(range(steps)):
        # The return of a step whose episode goes on outside the window; with nothing to continue with, no gamma either.
        outside = r[t]
        if bootstrap_values is not None:
            outside = r[t] + discount[t] * at(per_step(bootstrap_values), found.source[t])
        elif last_value is not None:
            of_last = r[t] + discount[t] * last_value.to(dtype)
            outside = torch.where(found.source[t] == steps - 1, of_last, r[t])

        inside = r[t] + discount[t] * next_return
        unfinished = torch.where(truncated[t] | found.at_end[t], outside, inside)
        result = torch.where(terminated[t], r[t], unfinished)
        returns[t] = torch.where(found.valid[t], result, 0.0)
        next_return = found.following(t, result, next_return)
    return torch.stack(returns).movedim(0, time_dim) if returns else torch.empty_like(r).movedim(0, time_dim)
