"""Episodic prefix sums on whole tensors: the coefficients of their recursion, under both flag conventions.

u     = inputs, and the seed values with them in the first step
decay = 1, cut before the first step of an episode
"""

from __future__ import annotations

from rl_triton_core.boundaries import cuts_before, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from torch import Tensor


def ends_at_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, float, Tensor]:
    """u, decay and cut of C[t] = u[t] + C[t-1], with flags at the last step of an episode."""
    return _coefficients(fields, row_values, dim, starts_at=False)


def starts_at_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, float, Tensor]:
    """The same with flags at the first step of an episode, where they hide the seed values too."""
    return _coefficients(fields, row_values, dim, starts_at=True)


def _coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, dim: int, *, starts_at: bool
) -> tuple[Tensor, float, Tensor]:
    inputs, dones = fields
    (seed_values,) = row_values
    assert inputs is not None and dones is not None
    u = inputs
    if seed_values is not None:
        u = inputs.clone()
        u.select(dim, 0).add_(unless(dones.select(dim, 0), seed_values) if starts_at else seed_values)
    return u, 1.0, cuts_before(dones, dim, starts_at=starts_at)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The sums: the scanned state itself."""
    return (y,)
