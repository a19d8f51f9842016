"""The segmented scan on whole tensors: the coefficients of its recursion, and its output."""

from __future__ import annotations

from torch import Tensor

from rl_triton_core.engine.algorithm import Numbers, OptionalTensors


def forward_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """u, decay and cut for y[t] from y[t-1]; `initial` enters the first step."""
    return _coefficients(fields, row_values, dim, open_end=0)


def reverse_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """u, decay and cut for y[t] from y[t+1]; `initial` enters the last step."""
    return _coefficients(fields, row_values, dim, open_end=-1)


def _coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, dim: int, open_end: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    inputs, decays, resets = fields
    (initial,) = row_values
    assert inputs is not None and decays is not None
    if initial is None:
        return inputs, decays, resets
    decay = decays.select(dim, open_end)
    if resets is not None:
        # Both factors are selected: what a reset hides may be NaN, and must not reach a derivative either.
        reset = resets.select(dim, open_end)
        decay, initial = decay.masked_fill(reset, 0.0), initial.masked_fill(reset, 0.0)
    u = inputs.clone()
    u.select(dim, open_end).add_(decay * initial)
    return u, decays, resets


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The scanned state itself."""
    return (y,)
