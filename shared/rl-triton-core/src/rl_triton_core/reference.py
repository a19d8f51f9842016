"""The segmented scan as it is defined: a loop over time.

y[t] = inputs[t] + decays[t] * y[t-1], or y[t+1] where `reverse`; y[t] = inputs[t] at a reset.

And what the references of all backward recursions read flags with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def segmented_scan(
    inputs: Tensor,
    decays: Tensor,
    *,
    resets: Tensor | None = None,
    initial: Tensor | None = None,
    reverse: bool = False,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """y, computed step by step in `dtype`. Arguments as for `rl_triton_core.segmented_scan`."""
    x = inputs.movedim(time_dim, 0).to(dtype)
    w = decays.movedim(time_dim, 0).to(dtype)
    reset = torch.zeros_like(x, dtype=torch.bool) if resets is None else resets.movedim(time_dim, 0) != 0

    y = list(x)
    state = None if initial is None else initial.to(dtype)
    for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        # Without `initial` nothing comes in at the open end, and the decay there is not read.
        y[t] = x[t] if state is None else torch.where(reset[t], x[t], x[t] + w[t] * state)
        state = y[t]
    return torch.stack(y).movedim(0, time_dim) if y else torch.empty_like(x).movedim(0, time_dim)


def ends(flags: Tensor, boundary: str, next_flag: Tensor | None) -> list[Tensor]:
    """Whether each step ended an episode, from flags with time first, as bools.

    A flag says so of its own step ("ends_at"), or of the one before it ("starts_at"; before step T that is the last).
    """
    is_set = [flag != 0 for flag in flags]
    if boundary == "starts_at" and is_set:
        is_set = [*is_set[1:], torch.zeros_like(is_set[0]) if next_flag is None else next_flag != 0]
    return is_set


def ended_steps(
    terminateds: Tensor, truncateds: Tensor | None, boundary: str, next_start: Any, time_dim: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Which steps terminated and which were truncated, time first; see `ends`."""
    terminated = terminateds.movedim(time_dim, 0)
    if truncateds is None:
        return ends(terminated, boundary, next_start), [torch.zeros_like(flag, dtype=torch.bool) for flag in terminated]
    behind = (None, None) if next_start is None else next_start
    return ends(terminated, boundary, behind[0]), ends(truncateds.movedim(time_dim, 0), boundary, behind[1])
