"""The lambda-return on whole tensors: the coefficients of its recursion, and its output.

    u     = rewards + gamma * (1 - lambda_) * next_values; a weight of 1 in place of 1 - lambda_ where interrupted
    decay = gamma * lambda_, cut after an ended step

Where either comes per step, both weights are products, and scanned in float64: rounded to float32, a decay that hardly
varies would be wrong by the same amount at every step of an episode, which a loop that multiplies twice is not.

Whatever a boundary hides may be NaN, and so may its derivative: it is replaced before it is multiplied, never after.
"""

from __future__ import annotations

import torch
from rl_triton_core.boundaries import interrupted, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from rl_triton_core.engine.precision import widest_dtype
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """u, decay and cut of G[t] = u[t] + decay[t] * G[t+1]."""
    rewards, next_values, terminateds, truncateds, bootstrap_values, gamma, lambda_ = fields
    assert rewards is not None and next_values is not None and terminateds is not None
    outside = interrupted(terminateds, truncateds, dim)
    continuation = next_values if bootstrap_values is None else torch.where(outside, bootstrap_values, next_values)
    continuation = unless(terminateds, continuation)
    cut = terminateds | outside
    if gamma is None and lambda_ is None:
        one_step = torch.where(outside, continuation, continuation * (1.0 - numbers[1]))
        return torch.add(rewards, one_step, alpha=numbers[0]), numbers[0] * numbers[1], cut
    wide = widest_dtype(rewards)
    discount = unless(terminateds, rewards.new_full((), numbers[0], dtype=wide) if gamma is None else gamma.to(wide))
    mixing = rewards.new_full((), numbers[1], dtype=wide) if lambda_ is None else lambda_.to(wide)
    decay = discount * unless(cut, mixing)
    return rewards + (discount - decay) * continuation, decay, cut


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The returns: the scanned state itself, no wider than the rewards."""
    rewards = fields[0]
    assert rewards is not None
    return (y.to(rewards.dtype),)
