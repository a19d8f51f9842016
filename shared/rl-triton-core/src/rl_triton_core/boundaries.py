"""What flags mean: episode ends, and the value that a step continues with.

A flag stands at the step that ends an episode. A terminated step continues with 0, a truncated one with the value of
the state that was cut off; both at once is a termination. `_boundaries_tile` says the same to Triton.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine.arguments import check_exclusive


def check_continuation(truncateds: Any, bootstrap_values: Any, last_value: Any, next_values: Any) -> None:
    """Check the arguments that say how truncated steps and the last column continue.

    Raises:
        ValueError: more than one of them was given.

    Warns:
        UserWarning: truncated steps inside the window have nothing to continue with.
    """
    if bootstrap_values is None and next_values is None:
        if truncateds is not None:
            warnings.warn(
                "truncateds without bootstrap_values: truncated steps inside the window continue with 0, as if they "
                "had terminated; pass bootstrap_values (V of the final observation at truncated steps) or next_values",
                UserWarning,
                stacklevel=3,
            )
        return
    check_exclusive(bootstrap_values=bootstrap_values, last_value=last_value, next_values=next_values)


def episode_ends(terminateds: Tensor, truncateds: Tensor | None) -> Tensor:
    """Where an episode is over, as a bool tensor."""
    return terminateds if truncateds is None else terminateds | truncateds


def cuts_before(flags: Tensor, dim: int, *, starts_at: bool) -> Tensor:
    """Where a forward recursion is cut, as a bool tensor: a step that reads nothing of the one before it.

    Flags at the step that ends an episode cut the step after it; flags at the first step of one (`starts_at`) cut that
    step itself. Nothing cuts the first column otherwise.
    """
    set_ = flags != 0
    if starts_at:
        return set_
    before_first = torch.zeros_like(set_.narrow(dim, 0, min(1, set_.shape[dim])))
    return torch.cat([before_first, set_.narrow(dim, 0, max(set_.shape[dim] - 1, 0))], dim)


def warn_of_values(
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    dim: int,
    *,
    continuation_given: bool,
    bootstrap_values: Tensor | None,
    inputs: dict[str, Any],
) -> None:
    """Warn of values that are legal but rarely meant. It looks into the tensors, so it may wait for the device.

    Warns:
        UserWarning: NaN in an input; a non-zero bootstrap value at an ordinary step; a last column that neither ended
            nor has a continuation.
    """
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
            _warn(f"{name}: holds NaN; every step of its episode before it will be NaN")
    if rewards.numel() == 0:
        return
    ended = terminateds != 0 if truncateds is None else (terminateds != 0) | (truncateds != 0)
    last = rewards.shape[dim] - 1
    if bootstrap_values is not None:
        stray = (bootstrap_values != 0).narrow(dim, 0, last)
        if truncateds is not None:
            stray = stray & (truncateds == 0).narrow(dim, 0, last)
        if bool(stray.any()):
            _warn("bootstrap_values: non-zero at an ordinary step, where it is ignored; set it at truncated steps only")
    if not continuation_given and not bool(ended.narrow(dim, last, 1).all()):
        _warn(
            "last_value: not given, and the last column has not ended everywhere, so it continues with 0; pass "
            "last_value, or bootstrap_values with V of the last observation in the last column"
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)
