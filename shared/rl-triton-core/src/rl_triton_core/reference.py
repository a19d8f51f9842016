"""The segmented scan as it is defined: a loop over time.

y[t] = inputs[t] + decays[t] * y[t-1], or y[t+1] where `reverse`; y[t] = inputs[t] at a reset.
"""

from __future__ import annotations

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
