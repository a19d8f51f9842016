"""An algorithm as operations on whole tensors: its coefficients, a scan, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm, Numbers, OptionalTensors
from rl_triton_core.engine.layout import empty_output, laid_out_like
from rl_triton_core.engine.modes import is_transformed
from rl_triton_core.engine.precision import accumulation_dtype, result_dtype

# (u, decay, cut, *, dim, reverse) -> y, as `scan_steps`.
Scan: TypeAlias = Callable[..., Tensor]


def compute(
    algorithm: Algorithm,
    fields: Sequence[Tensor | float | None],
    row_fields: Sequence[Tensor | None],
    dim: int,
    scan: Scan,
) -> tuple[Tensor, ...]:
    """The outputs of a checked call, differentiable in every real input if the scan is."""
    first = fields[0]
    assert isinstance(first, Tensor)
    described = list(zip((*algorithm.fields, *algorithm.row_fields), (*fields, *row_fields), strict=True))
    result = result_dtype(value for field, value in described if isinstance(value, Tensor) and field.is_real)
    if first.numel() == 0:
        return tuple(empty_output(first, result) for _ in range(algorithm.outputs))
    number = accumulation_dtype(result)
    converted: list[Tensor | None] = []
    for field, value in described:
        if not isinstance(value, Tensor):
            converted.append(None)
        elif field.flag:
            converted.append(value if value.dtype == torch.bool else value != 0)
        else:
            converted.append(value.to(torch.int64 if field.index else number))
    if is_transformed():
        converted[0] = _with_all_batch_axes(converted)
    tensors: OptionalTensors = tuple(converted[: len(fields)])
    row_values: OptionalTensors = tuple(converted[len(fields) :])
    numbers: Numbers = tuple(
        value if isinstance(value, float) else 0.0
        for field, value in zip(algorithm.fields, fields, strict=True)
        if field.numbers
    )
    u, decay, cut = algorithm.coefficients(tensors, row_values, numbers, dim)
    states = scan(u, decay, cut, dim=dim, reverse=algorithm.reverse)
    outputs = algorithm.emit(tensors, row_values, numbers, states, dim)
    return tuple(_laid_out_like(output.to(result), first) for output in outputs)


def _with_all_batch_axes(tensors: Sequence[Tensor | None]) -> Tensor:
    """The first tensor, with every axis that a vmap hides in any of them: what is made of it can be written into."""
    first = tensors[0]
    assert first is not None
    for tensor in tensors[1:]:
        if tensor is not None:
            first = first + tensor.new_zeros((), dtype=first.dtype)
    return first


def _laid_out_like(output: Tensor, first: Tensor) -> Tensor:
    """The output with the strides that the kernel would have given it; a transformed tensor has none to speak of."""
    if output.stride() == first.stride() or is_transformed():
        return output
    return laid_out_like(output, first)
