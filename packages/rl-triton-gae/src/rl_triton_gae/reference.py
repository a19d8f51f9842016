"""Generalised Advantage Estimation as it is defined: a loop from the last step to the first.

Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2015, equation 16,
as a recursion:

    delta[t] = rewards[t] + gamma * continuation[t] - values[t]
    A[t]     = delta[t] + gamma * lambda_ * A[t+1]
"""

from __future__ import annotations

from typing import Any

import torch
from rl_triton_core.reference import boundaries
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
    targets_lambda: float | Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Any = None,
    mask: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor | tuple[Tensor, Tensor]:
    """The advantages, and targets where asked for, step by step in `dtype`. Arguments as for `compute_gae`."""

    def per_step(x: Tensor) -> Tensor:
        return x.movedim(time_dim, 0).to(dtype)

    r, v = per_step(rewards), per_step(values)
    found = boundaries(terminateds, truncateds, boundary, next_start, time_dim, mask)
    terminated = found.terminated
    discount = per_step(gamma) if isinstance(gamma, Tensor) else torch.full_like(r, gamma)
    mixing = per_step(lambda_) if isinstance(lambda_, Tensor) else torch.full_like(r, lambda_)
    steps = r.shape[0]

    advantages = list(r)
    # Of the next valid step.
    next_value = next_advantage = torch.zeros_like(r[0]) if steps else r
    for t in reversed(range(steps)):
        continuation = found.continuation(t, next_value, bootstrap_values, last_value, next_values, time_dim)
        delta = torch.where(terminated[t], r[t] - v[t], r[t] + discount[t] * continuation - v[t])
        traced = delta + discount[t] * mixing[t] * next_advantage
        advantage = torch.where(terminated[t] | found.interrupted(t), delta, traced)
        advantages[t] = torch.where(found.valid[t], advantage, 0.0)
        next_value = found.following(t, v[t], next_value)
        next_advantage = found.following(t, advantage, next_advantage)
    result = torch.stack(advantages).movedim(0, time_dim) if advantages else torch.empty_like(r).movedim(0, time_dim)
    if not return_targets:
        return result
    basis: Any = result
    if targets_lambda is not None:
        others = (truncateds, gamma, targets_lambda, bootstrap_values, last_value)
        options: dict[str, Any] = {"next_values": next_values, "boundary": boundary, "next_start": next_start}
        basis = compute_gae(rewards, values, terminateds, *others, **options, mask=mask, time_dim=time_dim, dtype=dtype)
    targets = basis + values.to(dtype)
    return result, targets if mask is None else torch.where(mask != 0, targets, 0.0)
