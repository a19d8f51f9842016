"""One call of an algorithm: which path it takes.

A call is prepared once per combination of shapes, strides, dtypes, device and arguments present, and then found again:
first by asking the last call of that kind whether these tensors are like its own, then by the full key. Only plain
tensors on a GPU, with no gradient to record and no mode active, are looked up; everything else is validated anew. It
goes through the algorithm's operator where a mode, a tracer or a tensor's class wants to see it, and takes the path of
whole-tensor operations where it has to be recorded, or where there is no Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine import packing, prepared
from rl_triton_core.engine.algorithm import Algorithm, with_packed_sequences
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.buffers import check_buffers
from rl_triton_core.engine.composite import compute
from rl_triton_core.engine.direct_launch import make_shortcut
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from rl_triton_core.engine.launcher import KernelCall
from rl_triton_core.engine.modes import holds_numbers, is_watched
from rl_triton_core.engine.operators import call_operator, define, execute, needs_derivative
from rl_triton_core.engine.prepared import PLAIN
from rl_triton_core.engine.scan_operator import scan
from rl_triton_core.engine.sharding import is_sharded, run_on_shards


def run(
    algorithm: Algorithm,
    fields: Sequence[Any],
    row_fields: Sequence[Any],
    time_dim: int,
    out: Any = None,
    cu_seqlens: Any = None,
) -> tuple[Tensor, ...]:
    """Compute an algorithm's outputs from its arguments, in the order of its fields; into `out`, if it is given.

    Raises:
        TypeError: an argument that is not a tensor (or a number), or has a dtype that is no real number.
        ValueError: a shape or a range, or packed sequences with flags at the first steps of episodes.
        RuntimeError: tensors on different devices.
    """
    if cu_seqlens is not None:
        if algorithm.packed_form is None:
            raise ValueError('boundary: expected "ends_at" with cu_seqlens, got "starts_at"')
        packed = run(algorithm.packed_form, fields, (*row_fields, cu_seqlens), time_dim, out)
        if CORRECTNESS_WARNINGS and holds_numbers(cu_seqlens):
            packing.warn_of_offsets(cu_seqlens, fields[0].shape[0])
        return packed
    if out is not None:
        return _run_into(algorithm, fields, row_fields, time_dim, out)
    if torch.compiler.is_compiling():
        return _watched(algorithm, *check_arguments(algorithm, fields, row_fields, time_dim))
    arguments = (*fields, *row_fields)
    shortcut = algorithm.shortcut.get("last")
    if shortcut is not None:
        outputs: tuple[Tensor, ...] | None = shortcut(arguments, time_dim)
        if outputs is not None:
            return outputs
    watched = is_watched()
    key = None if watched else prepared.key_of(algorithm, arguments, time_dim)
    call = prepared.find(key)
    if call is not None:
        outputs = call(arguments)
        if outputs is not None:
            _remember(algorithm, call, arguments, time_dim)
            return outputs
    checked, checked_rows, dim = check_arguments(algorithm, fields, row_fields, time_dim)
    plain = (*checked, *checked_rows)
    if any(value is not given for value, given in zip(plain, arguments, strict=True)):
        # A number came as an int or a NumPy scalar, or a tensor as a negated view; in plain form it may be known.
        return run(algorithm, checked, checked_rows, time_dim)
    if watched or any(isinstance(value, Tensor) and type(value) not in PLAIN for value in plain):
        return _watched(algorithm, checked, checked_rows, dim)
    if algorithm.differentiable and needs_derivative(plain):
        return with_derivatives(algorithm, checked, checked_rows, dim)
    if key is None:
        return execute(algorithm, checked, checked_rows, dim)
    call = prepared.prepare(algorithm, checked, checked_rows, dim, key)
    outputs = call(plain)
    assert outputs is not None, "numbers were checked above"
    _remember(algorithm, call, arguments, time_dim)
    return outputs


def _run_into(
    algorithm: Algorithm, fields: Sequence[Any], row_fields: Sequence[Any], time_dim: int, out: Any
) -> tuple[Tensor, ...]:
    checked, checked_rows, dim = check_arguments(algorithm, fields, row_fields, time_dim)
    plain = (*checked, *checked_rows)
    buffers = check_buffers(algorithm, plain, out)
    if torch.compiler.is_compiling() or is_watched() or not prepared.kernel_serves((*plain, *buffers)):
        outputs = run(algorithm, checked, checked_rows, dim)
        return tuple([buffer.copy_(output) for buffer, output in zip(buffers, outputs, strict=True)])
    written = prepared.call_for(algorithm, checked, checked_rows, dim, buffers)(plain, buffers)
    assert written is not None, "numbers were checked above"
    return written


def _watched(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> tuple[Tensor, ...]:
    """A checked call that a mode, a tracer or a tensor's own class wants to see."""
    if any(is_sharded(value) for value in (*fields, *row_fields)):
        return run_on_shards(algorithm, fields, row_fields, dim, run)
    return call_operator(algorithm, fields, row_fields, dim)


def with_derivatives(
    algorithm: Algorithm, fields: Sequence[Tensor | float | None], row_fields: Sequence[Tensor | None], dim: int
) -> tuple[Tensor, ...]:
    """A checked call as operations on whole tensors, recorded by whoever differentiates."""
    return compute(algorithm, fields, row_fields, dim, partial(differentiable_scan, forward=scan))


def registered(algorithm: Algorithm, *, packs: bool = True) -> Algorithm:
    """The algorithm with its operator, ready to be run, and if it `packs` with its form for packed sequences."""
    recorded = with_derivatives if algorithm.differentiable else None
    if packs:
        algorithm = replace(algorithm, packed_form=define(with_packed_sequences(algorithm), recorded))
    return define(algorithm, recorded)


def _remember(algorithm: Algorithm, call: KernelCall, arguments: tuple[Any, ...], time_dim: int) -> None:
    """Let the next call ask this one first."""
    if call.direct is None or call.is_empty or call.needs_copy or not call.writes_in_place:
        return
    if call.shortcut is None or algorithm.shortcut.get("last") is call.shortcut:
        # None yet, or one that has just refused these arguments, made in another mode of PyTorch.
        call.shortcut = make_shortcut(call, arguments, time_dim)
    algorithm.shortcut["last"] = call.shortcut
