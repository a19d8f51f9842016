"""Eligibility traces on whole tensors: the coefficients of the recursion of every kind, and their output.

    kind            u                                   decay                                       cut besides
    accumulating    gradients                           gamma * lambda_
    replacing       gradients, where they are not 0     gamma * lambda_                             where they are not 0
    dutch           gradients                           gamma * lambda_ * (1 - alpha * gradients)

Every kind is cut before the step after an ended one, and has the decayed seed values in its first step. With ratios,
the scanned state is a trace before its own ratio multiplies it; that of the step before is in the decay.
"""

from __future__ import annotations

import torch
from rl_triton_core.boundaries import cuts_before, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from torch import Tensor


def accumulating_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor]:
    """u, decay and cut of y[t] = u[t] + decay * y[t-1]."""
    gradients, dones, *_ = fields
    (seed_values,) = row_values
    assert gradients is not None and dones is not None
    decay = numbers[0] * numbers[1]
    u = gradients
    if seed_values is not None:
        u = gradients.clone()
        u.select(dim, 0).add_(seed_values, alpha=decay)
    return u, _weighted(decay, fields, dim), cuts_before(dones, dim, starts_at=False)


def replacing_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor]:
    """The same for traces that start anew wherever a gradient is not 0."""
    gradients, dones, *_ = fields
    (seed_values,) = row_values
    assert gradients is not None and dones is not None
    decay = numbers[0] * numbers[1]
    cut = cuts_before(dones, dim, starts_at=False) | (gradients != 0)
    if seed_values is None:
        # Nothing comes in, so the first trace is the first gradient, 0 or not.
        cut.select(dim, 0).fill_(True)
    # Selected, so that a gradient of 0 has no derivative where a trace holds what is left of it instead.
    u = torch.where(cut, gradients, 0.0)
    if seed_values is not None:
        u.select(dim, 0).add_(unless(cut.select(dim, 0), seed_values), alpha=decay)
    return u, _weighted(decay, fields, dim), cut


def dutch_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for traces that lose alpha of what is left of them before a gradient of 1 is added."""
    gradients, dones, *_ = fields
    (seed_values,) = row_values
    assert gradients is not None and dones is not None
    gamma, lambda_, alpha = numbers
    decay = (1 - alpha * gradients) * (gamma * lambda_)
    u = gradients
    if seed_values is not None:
        u = gradients.clone()
        u.select(dim, 0).addcmul_(decay.select(dim, 0), seed_values)
    return u, decay, cuts_before(dones, dim, starts_at=False)


def _weighted(decay: float, fields: OptionalTensors, dim: int) -> Tensor | float:
    """The decay, times the ratio of the step before where ratios are among the fields; the first step's is not read."""
    ratios = fields[4] if len(fields) > 4 else None
    return decay if ratios is None else ratios.roll(1, dim) * decay


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The traces: the scanned state itself."""
    return (y,)


def weighted_emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The traces: the scanned state times the ratios."""
    ratios = fields[4]
    assert ratios is not None
    return (ratios * y,)
