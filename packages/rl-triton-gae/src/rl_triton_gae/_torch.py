"""GAE on whole tensors: the coefficients of its recursion, and its output.

    u     = rewards - values + gamma * continuation
    decay = gamma * lambda_, cut after an ended step

Whatever a boundary hides may be NaN, and so may its derivative: it is replaced before it is multiplied, never after.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from rl_triton_core.boundaries import episode_ends
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """u, decay and cut of A[t] = u[t] + decay[t] * A[t+1]."""
    rewards, values, terminateds, truncateds, bootstrap_values, next_values, gamma, lambda_ = fields
    (last_value,) = row_values
    assert rewards is not None and values is not None and terminateds is not None
    discount: Tensor | float = numbers[0] if gamma is None else _unless(terminateds, gamma)
    u = rewards - values
    if next_values is not None:
        _add_discounted(u, discount, _unless(terminateds, next_values))
    else:
        _add_continuations(u, discount, values, terminateds, truncateds, bootstrap_values, last_value, dim)

    ended = episode_ends(terminateds, truncateds)
    if gamma is None and lambda_ is None:
        return u, numbers[0] * numbers[1], ended
    # The scan reads no decay at a cut; gamma is selected so that lambda_ does not meet its NaN in the derivative.
    per_step = numbers[0] if gamma is None else _unless(ended, gamma)
    return u, per_step * (numbers[1] if lambda_ is None else lambda_), ended


def _add_continuations(
    u: Tensor,
    discount: Tensor | float,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    bootstrap_values: Tensor | None,
    last_value: Tensor | None,
    dim: int,
) -> None:
    """Add discount * V(s_{t+1}) to u, in place: the value of the next column, or what continues the last one."""
    inner = values.shape[dim] - 1

    def inside(x: Tensor) -> Tensor:
        return x.narrow(dim, 0, inner)

    following = values.narrow(dim, 1, inner)
    hidden = inside(terminateds)
    if truncateds is not None and bootstrap_values is not None:
        following = torch.where(inside(truncateds), inside(bootstrap_values), following)
    elif truncateds is not None:
        hidden = hidden | inside(truncateds)
    _add_discounted(inside(u), _apply(inside, discount), _unless(hidden, following))

    def in_last_column(x: Tensor) -> Tensor:
        return x.select(dim, -1)

    last = last_value if bootstrap_values is None else in_last_column(bootstrap_values)
    if last is not None:
        continuation = _unless(in_last_column(terminateds), last)
        _add_discounted(in_last_column(u), _apply(in_last_column, discount), continuation)


def _apply(part: Callable[[Tensor], Tensor], x: Tensor | float) -> Tensor | float:
    return part(x) if isinstance(x, Tensor) else x


def _add_discounted(u: Tensor, discount: Tensor | float, continuation: Tensor) -> None:
    if isinstance(discount, Tensor):
        u.addcmul_(discount, continuation)
    else:
        u.add_(continuation, alpha=discount)


def _unless(hidden: Tensor, x: Tensor) -> Tensor:
    return torch.where(hidden, 0.0, x)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The advantages: the scanned state itself."""
    return (y,)
