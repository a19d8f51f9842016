"""An algorithm as operations on whole tensors: its coefficients, a scan, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from rl_triton_core.engine import packing
from rl_triton_core.engine.algorithm import Algorithm, Coefficients, Numbers, OptionalTensors, States
from rl_triton_core.engine.layout import empty_output, laid_out_like
from rl_triton_core.engine.modes import is_transformed
from rl_triton_core.engine.packing import Packing
from rl_triton_core.engine.precision import accumulation_dtype
from rl_triton_core.engine.shift import of_next
from rl_triton_core.engine.transparent import Moved, move_valid_steps, moved_back

# (u, decay, cut, *, dim, reverse) -> y, as `scan_steps`.
Scan: TypeAlias = Callable[..., Tensor]


class Problem(NamedTuple):
    """A checked call in the precision that it is computed in, with flags as bools; None for what it lacks.

    Attributes:
        fields: a tensor with a value per step for every field but the mask.
        row_values: one with a value per row for every row field.
        numbers: those of the fields that may be one, 0 where it came as a tensor.
        dtype: of the outputs.
        moved: where valid steps have been moved to, if a mask leaves others out.
        packing: where the sequences lie, if they are packed (after valid steps have been moved).
    """

    fields: OptionalTensors
    row_values: OptionalTensors
    numbers: Numbers
    dtype: torch.dtype
    moved: Moved | None = None
    packing: Packing | None = None


def problem_of(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> Problem:
    """Convert the arguments of a checked call.

    Flags come to stand at the steps that end episodes, and steps that a mask holds side by side at the end of rows.
    """
    arguments = (*fields, *row_fields)
    result = algorithm.output_dtype(arguments)
    number = accumulation_dtype(result)
    converted: list[Tensor | None] = []
    for field, value in algorithm.described(arguments):
        if not isinstance(value, Tensor):
            converted.append(None)
        elif field.flag:
            converted.append(value if value.dtype == torch.bool else value != 0)
        else:
            converted.append(value.to(torch.int64 if field.index else number))
    numbers: Numbers = tuple(
        value if isinstance(value, float) else 0.0
        for field, value in zip(algorithm.fields, fields, strict=True)
        if field.numbers
    )
    has_steps = cast(Tensor, fields[0]).numel() > 0
    if algorithm.start_flags and has_steps:
        places = {field.name: place for place, field in enumerate((*algorithm.fields, *algorithm.row_fields))}
        for name, behind in algorithm.start_flags:
            flags = converted[places[name]]
            if flags is not None:
                converted[places[name]] = of_next(flags, converted[places[behind]], dim)
    rows = tuple(converted[len(fields) : len(arguments) - len(algorithm.start_flags) - algorithm.packed])
    steps, mask = tuple(converted[: len(algorithm.step_fields)]), converted[len(fields) - 1]
    packed = None
    if algorithm.packed and has_steps:
        offsets, like = cast(Tensor, converted[-1]), cast(Tensor, steps[0])
        packed = packing.packing_of(offsets, like, dim, reverse=algorithm.reverse)
    if not algorithm.takes_mask or mask is None or not has_steps:
        return Problem(steps, rows, numbers, result, packing=packed)
    moved = move_valid_steps(algorithm, steps, rows, mask, dim, packed)
    return Problem(moved.fields, moved.row_values, numbers, result, moved, moved.packing)


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
    problem = problem_of(algorithm, fields, row_fields, dim)
    if first.numel() == 0:
        return tuple(empty_output(first, problem.dtype) for _ in range(algorithm.outputs))
    if is_transformed():
        leader = _with_all_batch_axes((*problem.fields, *problem.row_values))
        problem = problem._replace(fields=(leader, *problem.fields[1:]))
    u, decay, cut = _coefficients(algorithm, problem, dim)
    scanned = partial(scan, u, cut=cut, dim=dim, reverse=algorithm.reverse)
    states = tuple(map(scanned, decay)) if isinstance(decay, tuple) else scanned(decay)
    return emitted(algorithm, problem, states, dim, first)


def emitted(algorithm: Algorithm, problem: Problem, states: States, dim: int, first: Tensor) -> tuple[Tensor, ...]:
    """The outputs that scanned states make, laid out like the call's first argument."""
    if problem.packing is None:
        outputs = algorithm.emit(*problem[:3], states, dim)
    else:
        outputs = packing.emit(algorithm, *problem[:3], problem.packing, states, dim)
    if problem.moved is not None:
        outputs = tuple(moved_back(output, problem.moved, dim) for output in outputs)
    return tuple(_laid_out_like(output.to(problem.dtype), first) for output in outputs)


def _coefficients(algorithm: Algorithm, problem: Problem, dim: int) -> Coefficients:
    if problem.packing is None:
        return algorithm.coefficients(*problem[:3], dim)
    return packing.coefficients(algorithm, *problem[:3], problem.packing, dim)


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
