"""Sums that restart at episode boundaries, as they are defined: a loop from the first step to the last.

    C[t] = inputs[t] + C[t-1]

The first step of an episode reads no sum before it. Blelloch, "Prefix Sums and Their Applications", 1990, section 1.5,
calls this a segmented scan, with flags at the first element of a segment: `boundary="starts_at"` here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_episodic_prefix_sum(
    inputs: Tensor,
    dones: Tensor,
    seed_values: Tensor | None = None,
    boundary: str = "ends_at",
    *,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The sums, computed step by step in `dtype`. Arguments as for `rl_triton_prefix.compute_episodic_prefix_sum`."""
    x = inputs.movedim(time_dim, 0).to(dtype)
    done = dones.movedim(time_dim, 0) != 0
    # A flag at the last step of an episode makes the next step a first one; none ended before the window.
    first = done if boundary == "starts_at" else torch.cat([torch.zeros_like(done[:1]), done[:-1]])

    sums = list(x)
    before = None if seed_values is None else seed_values.to(dtype)
    for t in range(x.shape[0]):
        if before is not None:
            sums[t] = torch.where(first[t], x[t], x[t] + before)
        before = sums[t]
    return torch.stack(sums).movedim(0, time_dim) if sums else torch.empty_like(x).movedim(0, time_dim)
