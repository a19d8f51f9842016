"""One call of an algorithm: which path it takes.

A call is prepared once per combination of shapes, strides, dtypes, device and arguments present, and then found again:
first by asking the last call of that kind whether these tensors are like its own, then by the full key. Only plain
tensors on a GPU, with no gradient to record and no mode active, are looked up; everything else is validated anew and
takes the path of whole-tensor operations where it has to be recorded, or where there is no Triton.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rl_triton_core.engine.algorithm import Algorithm, Numbers, OptionalTensors
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.direct_launch import make_shortcut
from rl_triton_core.engine.environment import INTERPRETER
from rl_triton_core.engine.launcher import KernelCall
from rl_triton_core.engine.layout import empty_output, laid_out_like
from rl_triton_core.engine.modes import has_tangents, is_transformed, is_watched
from rl_triton_core.engine.precision import accumulation_dtype, result_dtype
from rl_triton_core.engine.torch_scan import scan_steps

MOST_PREPARED_CALLS = 1024
_prepared_calls: OrderedDict[Any, KernelCall] = OrderedDict()


def run(algorithm: Algorithm, fields: Sequence[Any], row_fields: Sequence[Any], time_dim: int) -> tuple[Tensor, ...]:
    """Compute an algorithm's outputs from its arguments, in the order of its fields.

    Raises:
        TypeError: an argument that is not a tensor (or a number), or has a dtype that is no real number.
        ValueError: a shape or a range.
        RuntimeError: tensors on different devices.
    """
    if torch.compiler.is_compiling():
        checked, checked_rows, dim = check_arguments(algorithm, fields, row_fields, time_dim)
        return run_on_tensors(algorithm, checked, checked_rows, dim)
    arguments = (*fields, *row_fields)
    shortcut = algorithm.shortcut.get("last")
    if shortcut is not None:
        outputs: tuple[Tensor, ...] | None = shortcut(arguments, time_dim)
        if outputs is not None:
            return outputs
    key = _key(algorithm, arguments, time_dim)
    call = None if key is None else _prepared_calls.get(key)
    if call is not None:
        outputs = call(arguments)
        if outputs is not None:
            _remember(algorithm, call, arguments, time_dim)
            return outputs
    checked, checked_rows, dim = check_arguments(algorithm, fields, row_fields, time_dim)
    if any(value is not given for value, given in zip((*checked, *checked_rows), arguments, strict=True)):
        # A number came as an int or a NumPy scalar, or a tensor as a negated view; in plain form it may be known.
        return run(algorithm, checked, checked_rows, time_dim)
    if key is None and not _kernel_serves(algorithm, checked, checked_rows):
        return run_on_tensors(algorithm, checked, checked_rows, dim)
    call = KernelCall(algorithm, checked, checked_rows, dim)
    outputs = call((*checked, *checked_rows))
    assert outputs is not None, "numbers were checked above"
    if key is not None:
        _prepared_calls[key] = call
        if len(_prepared_calls) > MOST_PREPARED_CALLS:
            _prepared_calls.popitem(last=False)
        _remember(algorithm, call, arguments, time_dim)
    return outputs


def _remember(algorithm: Algorithm, call: KernelCall, arguments: tuple[Any, ...], time_dim: int) -> None:
    """Let the next call ask this one first."""
    if call.direct is None or call.is_empty or call.needs_copy:
        return
    if call.shortcut is None or algorithm.shortcut.get("last") is call.shortcut:
        # None yet, or one that has just refused these arguments, made in another mode of PyTorch.
        call.shortcut = make_shortcut(call, arguments, time_dim)
    algorithm.shortcut["last"] = call.shortcut


def _key(algorithm: Algorithm, arguments: tuple[Any, ...], time_dim: Any) -> Any:
    """What a prepared call is kept under, or None where this call must not be looked up."""
    if arguments[0].__class__ is not Tensor or not arguments[0].is_cuda or is_watched():
        return None
    key: list[Any] = [algorithm, time_dim, time_dim.__class__]
    recording = algorithm.differentiable and torch.is_grad_enabled()
    for value in arguments:
        kind = value.__class__
        if kind is Tensor:
            if (recording and value.requires_grad) or value.is_neg():
                return None
            key += (value.shape, value.stride(), value.dtype, value.device)
        elif value is None or kind is float:
            key.append(kind)
        else:
            return None
    return tuple(key)


def _kernel_serves(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None]
) -> bool:
    """Whether the kernel can run a call that has no key: plain tensors that only came in an unusual way."""
    first = fields[0]
    assert isinstance(first, Tensor)
    if first.device.type != "cuda" and not (INTERPRETER and first.device.type == "cpu"):
        return False
    if not _triton_is_installed() or is_watched():
        return False
    tensors = [value for value in (*fields, *row_fields) if isinstance(value, Tensor)]
    if algorithm.differentiable and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def run_on_tensors(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> tuple[Tensor, ...]:
    """The same call as operations on whole tensors, differentiable in every real input if the algorithm is."""
    if algorithm.differentiable:
        return _compute(algorithm, fields, row_fields, dim)
    with torch.no_grad(), forward_ad._set_fwd_grad_enabled(False):
        return _compute(algorithm, fields, row_fields, dim)


def _compute(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> tuple[Tensor, ...]:
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
    states = _scan(u, decay, cut, dim, algorithm.reverse)
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


def _scan(u: Tensor, decay: Tensor | float, cut: Tensor | None, dim: int, reverse: bool) -> Tensor:
    recorded = u.requires_grad or (isinstance(decay, Tensor) and decay.requires_grad)
    if (torch.is_grad_enabled() and recorded) or has_tangents() or is_transformed():
        return differentiable_scan(u, decay, cut, dim=dim, reverse=reverse)
    return scan_steps(u, decay, cut, dim=dim, reverse=reverse)


def _laid_out_like(output: Tensor, first: Tensor) -> Tensor:
    """The output with the strides that the kernel would have given it; a transformed tensor has none to speak of."""
    if output.stride() == first.stride() or is_transformed():
        return output
    return laid_out_like(output, first)
