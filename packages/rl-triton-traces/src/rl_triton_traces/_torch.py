"""Eligibility traces on whole tensors: the coefficients of their recursion, and their output.

u     = gradients, and gamma * lambda_ * seed_values with them in the first step
decay = gamma * lambda_, cut before the step after an ended one
"""

from __future__ import annotations

from rl_triton_core.boundaries import cuts_before
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, float, Tensor]:
    """u, decay and cut of z[t] = u[t] + decay * z[t-1]."""
    gradients, dones, _, _ = fields
    (seed_values,) = row_values
    assert gradients is not None and dones is not None
    decay = numbers[0] * numbers[1]
    u = gradients
    if seed_values is not None:
        u = gradients.clone()
        u.select(dim, 0).add_(seed_values, alpha=decay)
    return u, decay, cuts_before(dones, dim, starts_at=False)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The traces: the scanned state itself."""
    return (y,)
