"""Algorithms as operators of PyTorch, `torch.ops.rl_triton.*`: what tracers, transforms and modes see of a call.

An operator takes checked arguments by position: the tensors of the fields, those of the row fields, the numbers (0
where the field came as a tensor), and the time axis. Whoever traces it sees one node, and learns from it the outputs'
shapes, dtypes and strides without running anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rl_triton_core.engine import prepared
from rl_triton_core.engine.algorithm import Algorithm
from rl_triton_core.engine.composite import compute
from rl_triton_core.engine.layout import empty_output
from rl_triton_core.engine.modes import has_tangents
from rl_triton_core.engine.torch_scan import scan_steps

# A checked call: fields, row fields, time axis.
Call: TypeAlias = tuple[list[Tensor | float | None], list[Tensor | None], int]
Outputs: TypeAlias = tuple[Tensor, ...]
Recorded: TypeAlias = Callable[[Algorithm, Sequence[Tensor | float | None], Sequence[Tensor | None], int], Outputs]

_LIBRARY: Any = torch.library.Library("rl_triton", "FRAGMENT")  # type: ignore[no-untyped-call]
# The algorithm that an operator runs; one defined anew (a module reloaded) takes the place of the old one.
_algorithms: dict[Any, Algorithm] = {}
# Outputs are laid out like the first argument, so a compiler must not change the layout of what it hands over.
_TAGS = (torch.Tag.pt2_compliant_tag, getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order))


def define(algorithm: Algorithm, recorded: Recorded | None) -> Algorithm:
    """The algorithm with its operator.

    `recorded(algorithm, fields, row_fields, dim)` runs calls with a derivative; without it, nothing is recorded.
    """
    name = _identifier(algorithm.name)
    is_new = not hasattr(torch.ops.rl_triton, name)
    if is_new:
        _LIBRARY.define(f"{name}{_schema(algorithm)}", tags=_TAGS)
    operator = getattr(torch.ops.rl_triton, name).default
    _algorithms[operator] = algorithm = replace(algorithm, operator=operator)
    if is_new:
        _implement(operator, name, recorded)
    return algorithm


def _implement(operator: Any, name: str, recorded: Recorded | None) -> None:
    """Tell PyTorch what an operator does with numbers, with shapes alone, with derivatives and under vmap."""

    def through(function: Callable[..., Outputs], arguments: Sequence[Any]) -> Any:
        algorithm = _algorithms[operator]
        return as_returned(function(algorithm, *_unpacked(algorithm, arguments)))

    def implementation(*arguments: Any) -> Any:
        return through(execute, arguments)

    def fake(*arguments: Any) -> Any:
        return through(_unwritten, arguments)

    def autograd(keys: Any, *arguments: Any) -> Any:
        if recorded is not None and needs_derivative(arguments):
            return through(recorded, arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    def vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> Any:
        *tensors, dim = arguments
        batched = [_batch_first(x, of, info.batch_size) for x, of in zip(tensors, in_dims[:-1], strict=True)]
        if (place := _place_of_offsets(_algorithms[operator])) is not None:
            if in_dims[place] is not None:
                raise NotImplementedError(
                    f"{_algorithms[operator].name}: expected the same sequences for every entry of a vmap, got in_dims "
                    f"{in_dims[place]} for them; pass in_dims None"
                )
            batched[place] = tensors[place]
        outputs = operator(*batched, dim + 1)
        return outputs, 0 if isinstance(outputs, Tensor) else (0,) * len(outputs)

    _LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    torch.library.register_fake(f"rl_triton::{name}", fake, lib=_LIBRARY)
    torch.library.register_vmap(f"rl_triton::{name}", vmap, lib=_LIBRARY)


def call_operator(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> Outputs:
    """A checked call through the algorithm's operator."""
    tensors: list[Tensor | None] = []
    numbers: list[float] = []
    for field, value in zip(algorithm.fields, fields, strict=True):
        number = not (value is None or isinstance(value, Tensor))
        if field.per_step:
            tensors.append(None if number else value)  # type: ignore[arg-type]
        if field.numbers is not None:
            numbers.append(value if number else 0.0)  # type: ignore[arg-type]
    outputs = algorithm.operator(*tensors, *row_fields, *numbers, dim)
    return outputs if algorithm.outputs > 1 else (outputs,)


def call_of(function: Any, arguments: Sequence[Any]) -> tuple[Algorithm, Call] | None:
    """The algorithm and the checked call, if a function is the operator of an algorithm."""
    algorithm = _algorithms.get(function)
    return None if algorithm is None else (algorithm, _unpacked(algorithm, arguments))


def execute(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> Outputs:
    """A checked call that nobody watches, and that records nothing: by the kernel where it serves."""
    arguments = (*fields, *row_fields)
    if not prepared.kernel_serves(arguments):
        with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
            return compute(algorithm, fields, row_fields, dim, scan_steps)
    outputs = prepared.call_for(algorithm, fields, row_fields, dim)(arguments)
    assert outputs is not None, "numbers were checked before"
    return outputs


def needs_derivative(arguments: Sequence[Any]) -> bool:
    """Whether a gradient or a tangent of any of them is wanted."""
    if has_tangents():
        return True
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in arguments)


def _schema(algorithm: Algorithm) -> str:
    """An operator's arguments and what it returns, as PyTorch writes them."""
    first, *others = (field for field in algorithm.fields if field.per_step)
    tensors = [f"Tensor {first.name}"]
    tensors += [f"Tensor{'' if field.required and not field.numbers else '?'} {field.name}" for field in others]
    tensors += [f"Tensor? {_identifier(field.name)}_of_row" for field in algorithm.row_fields]
    numbers = [f"float {field.name}_number" for field in algorithm.fields if field.numbers]
    returned = "Tensor" if algorithm.outputs == 1 else f"({', '.join(['Tensor'] * algorithm.outputs)})"
    return f"({', '.join((*tensors, *numbers))}, int time_dim) -> {returned}"


def _place_of_offsets(algorithm: Algorithm) -> int | None:
    """Where an operator's arguments say how sequences are packed, if they do."""
    if not algorithm.packed:
        return None
    return sum(field.per_step for field in algorithm.fields) + len(algorithm.row_fields) - 1


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_")


def _unpacked(algorithm: Algorithm, arguments: Sequence[Any]) -> Call:
    """A checked call from the arguments of its operator."""
    given = iter(arguments)
    fields = [next(given) if field.per_step else None for field in algorithm.fields]
    row_fields = [next(given) for _ in algorithm.row_fields]
    for place, field in enumerate(algorithm.fields):
        if field.numbers is not None:
            number = next(given)
            if fields[place] is None:
                fields[place] = number
    return fields, row_fields, next(given)


def _unwritten(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> Outputs:
    """Outputs of the right shape, dtype, device and strides."""
    dtype = algorithm.output_dtype((*fields, *row_fields))
    first = fields[0]
    assert isinstance(first, Tensor)
    return tuple(empty_output(first, dtype) for _ in range(algorithm.outputs))


def as_returned(outputs: Outputs) -> Tensor | Outputs:
    """Outputs as an operator returns them."""
    return outputs[0] if len(outputs) == 1 else outputs


def _batch_first(value: Any, batch_dim: int | None, size: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.expand(size, *value.shape) if batch_dim is None else value.movedim(batch_dim, 0)
