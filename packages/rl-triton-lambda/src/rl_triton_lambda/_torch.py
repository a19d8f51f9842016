"""The lambda-return on whole tensors: the coefficients of its recursion, and its output.

    u     = rewards + gamma * (1 - lambda_) * next_values; a weight of 1 in place of 1 - lambda_ where interrupted
    decay = gamma * lambda_, cut after an ended step

Per step, the first weight is gamma - decay: it makes up for how the second was rounded, and both add up to gamma. Over
many steps a value far from zero would otherwise count more, or less, than it should.

Whatever a boundary hides may be NaN, and so may its derivative: it is replaced before it is multiplied, never after.
"""

from __future__ import annotations

import torch
from rl_triton_core.boundaries import interrupted, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
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
        gamma_, mixing = numbers
        one_step = torch.where(outside, continuation, continuation * (1.0 - mixing))
        return torch.add(rewards, one_step, alpha=gamma_), gamma_ * mixing, cut
    discount = numbers[0] if gamma is None else unless(terminateds, gamma)
    decay = discount * unless(cut, rewards.new_full((), numbers[1]) if lambda_ is None else lambda_)
    return rewards + (discount - decay) * continuation, decay, cut


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The returns: the scanned state itself."""
    return (y,)
