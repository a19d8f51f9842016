"""Accumulating eligibility traces as they are defined: a loop from the first step to the last.

Sutton and Barto, "Reinforcement Learning: An Introduction", 2nd edition, 2018, section 12.2, equation 12.5:

    z[t] = gradients[t] + gamma * lambda_ * z[t-1]

A trace ends with its episode: the step after an ended one starts from its own gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_eligibility_traces(
    gradients: Tensor,
    dones: Tensor,
    gamma: float,
    lambda_: float,
    seed_values: Tensor | None = None,
    *,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The traces, computed step by step in `dtype`. Arguments as for `rl_triton_traces.compute_eligibility_traces`."""
    x = gradients.movedim(time_dim, 0).to(dtype)
    done = dones.movedim(time_dim, 0) != 0

    traces = list(x)
    for t in range(x.shape[0]):
        if t > 0:
            traces[t] = torch.where(done[t - 1], x[t], x[t] + gamma * lambda_ * traces[t - 1])
        elif seed_values is not None:
            traces[t] = x[t] + gamma * lambda_ * seed_values.to(dtype)
    return torch.stack(traces).movedim(0, time_dim) if traces else torch.empty_like(x).movedim(0, time_dim)
