"""Returns as they are defined: loops from the last step to the first.

Sutton & Barto, "Reinforcement Learning: An Introduction", second edition, 2018, equation 3.9, with a value of the next
state where an episode goes on outside the window:

    G[t] = rewards[t] + gamma * G[t+1]

and n-step returns, equation 7.1 there: the same from the last step of every window of n, with a value behind it.
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
    terminated = found.terminated
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
        unfinished = torch.where(found.interrupted(t), outside, inside)
        result = torch.where(terminated[t], r[t], unfinished)
        returns[t] = torch.where(found.valid[t], result, 0.0)
        next_return = found.following(t, result, next_return)
    return torch.stack(returns).movedim(0, time_dim) if returns else torch.empty_like(r).movedim(0, time_dim)


def compute_n_step_returns(
    rewards: Tensor,
    values: Tensor | None,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    n: int = 5,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The returns, step by step in `dtype`. Arguments as for `rl_triton_returns.compute_n_step_returns`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r = per_step(rewards)
    terminated = terminateds.movedim(time_dim, 0) != 0
    truncated = torch.zeros_like(terminated) if truncateds is None else truncateds.movedim(time_dim, 0) != 0
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    steps = r.shape[0]

    returns = list(r)
    for t in range(steps):
        following = r[t]
        for k in reversed(range(t, min(t + n, steps))):
            # Where the episode goes on outside the window; with nothing to continue with, no gamma either.
            outside = r[k]
            if next_values is not None:
                outside = r[k] + discount[k] * per_step(next_values)[k]
            elif bootstrap_values is not None:
                outside = r[k] + discount[k] * per_step(bootstrap_values)[k]
            elif last_value is not None and k == steps - 1:
                outside = r[k] + discount[k] * last_value.to(dtype)

            unfinished = outside
            if k < steps - 1:
                if k == t + n - 1 and next_values is not None:
                    following = per_step(next_values)[k]
                elif k == t + n - 1 and values is not None:
                    following = per_step(values)[k + 1]
                unfinished = torch.where(truncated[k], outside, r[k] + discount[k] * following)
            following = torch.where(terminated[k], r[k], unfinished)
        returns[t] = following
    return torch.stack(returns).movedim(0, time_dim) if returns else torch.empty_like(r).movedim(0, time_dim)
