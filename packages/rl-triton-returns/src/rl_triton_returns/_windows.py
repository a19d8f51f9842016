"""n-step returns on whole tensors, for every device: windows that are joined until they hold n steps.

A window of k steps maps what follows it to the return of its first step: total + weight * following. Where it holds the
end of an episode, or the last column, it is closed: what is beyond is in its total, or is nothing, and is never read.
A window followed by another is a window again, so the binary digits of n say which doubled ones make n steps. Numbers
are only added up and multiplied by products of discounts; nothing is subtracted.

What is hidden may be NaN, and so may its derivative: it is replaced before it is multiplied, never after.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from rl_triton_core.boundaries import columns, episode_ends, interrupted, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from rl_triton_core.engine.precision import widest_dtype
from torch import Tensor


class _Window(NamedTuple):
    """Windows of `steps` steps, one from every step of the sequence on.

    Attributes:
        total: the discounted rewards, and what they continue with where the window is closed.
        weight: the product of the discounts, a number where they are one; not to be read where the window is closed.
        closed: whether the episode or the sequence ends inside.
        steps: how many steps there are in a window that is not closed.
    """

    total: Tensor
    weight: Tensor | float
    closed: Tensor
    steps: int


def n_step_returns(fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, n: int, dim: int) -> Tensor:
    """The n-step return of every step."""
    rewards, values, _, _, _, next_values, _ = fields
    assert rewards is not None
    steps = rewards.shape[dim]
    window = _of_n_steps(_of_one_step(fields, row_values, numbers, dim), n, numbers[0], dim)
    inner = steps - window.steps
    if inner <= 0:
        # Of a single step with nothing behind it, the reward itself.
        return window.total.clone() if window.total is rewards else window.total
    if next_values is not None:
        following = next_values.narrow(dim, window.steps - 1, inner)
    else:
        assert values is not None
        following = values.narrow(dim, window.steps, inner)
    return _followed_by(window, following, dim)


def _of_one_step(fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int) -> _Window:
    """The window of each step alone."""
    rewards, _, terminateds, truncateds, bootstrap_values, next_values, gamma = fields
    (last_value,) = row_values
    assert rewards is not None and terminateds is not None
    goes_on_outside = interrupted(terminateds, truncateds, dim)
    closed = episode_ends(terminateds, truncateds) | goes_on_outside
    total = rewards
    outside = bootstrap_values if next_values is None else next_values
    if outside is not None:
        hidden = terminateds | ~goes_on_outside
        total = rewards + unless(hidden, outside) * (numbers[0] if gamma is None else unless(hidden, gamma))
    elif last_value is not None:
        inside, in_last_column, _ = columns(rewards.shape[dim], dim)
        hidden = in_last_column(terminateds)
        discount = numbers[0] if gamma is None else unless(hidden, in_last_column(gamma))
        last = in_last_column(rewards) + unless(hidden, last_value) * discount
        total = torch.cat([inside(rewards), last.unsqueeze(dim)], dim)
    if gamma is None:
        return _Window(total, numbers[0], closed, 1)
    # In float32 the rounding of a product would compound.
    return _Window(total, unless(closed, gamma.to(widest_dtype(gamma))), closed, 1)


def _of_n_steps(one: _Window, n: int, number: float, dim: int) -> _Window:
    doubled, result = one, None
    while True:
        if n & 1:
            result = doubled if result is None else _joined(result, doubled, number, dim)
        n >>= 1
        if not n:
            assert result is not None
            return result
        doubled = _joined(doubled, doubled, number, dim)


def _joined(first: _Window, second: _Window, number: float, dim: int) -> _Window:
    """Every window of the first kind with the one of the second kind that follows it."""
    steps = first.steps + second.steps
    length = first.total.shape[dim]
    inner = length - first.steps
    if inner <= 0:
        # All of them are closed: nothing can follow.
        return first._replace(steps=steps)

    def joined(head: Tensor, of_first: Tensor) -> Tensor:
        """With the windows that reach the last column as they are."""
        return torch.cat([head, of_first.narrow(dim, inner, length - inner)], dim)

    closed = first.closed.narrow(dim, 0, inner) | second.closed.narrow(dim, first.steps, inner)
    total = _followed_by(first, second.total.narrow(dim, first.steps, inner), dim)
    if not isinstance(first.weight, Tensor) or not isinstance(second.weight, Tensor):
        return _Window(total, number**steps, joined(closed, first.closed), steps)
    # One factor is 0 where either is closed, so that neither meets the other's NaN.
    ahead = unless(closed, second.weight.narrow(dim, first.steps, inner))
    weight = unless(closed, first.weight.narrow(dim, 0, inner)) * ahead
    return _Window(total, joined(weight, first.weight), joined(closed, first.closed), steps)


def _followed_by(window: _Window, following: Tensor, dim: int) -> Tensor:
    """The totals with what follows the windows that do not reach the last column."""
    inner = following.shape[dim]
    own = window.total.narrow(dim, 0, inner)
    ahead = unless(window.closed.narrow(dim, 0, inner), following)
    if isinstance(window.weight, Tensor):
        own = own + window.weight.narrow(dim, 0, inner).to(own.dtype) * ahead
    else:
        own = torch.add(own, ahead, alpha=window.weight)
    return torch.cat([own, window.total.narrow(dim, inner, window.total.shape[dim] - inner)], dim)
