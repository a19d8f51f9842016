"""The caller's buffers for the outputs (`out=`): what they have to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Signature
from rl_triton_core.engine.prepared import PLAIN

# Where two tensors of one storage interleave, finding out whether they share an element may take long.
MOST_TRIALS = 10_000


def check_buffers(signature: Signature, arguments: Sequence[Any], out: Any) -> tuple[Tensor, ...]:
    """Check `out` against a call's checked arguments, and return it as a tuple with a tensor for every output.

    Raises:
        TypeError: not one tensor for every output, or another dtype than that of the outputs.
        ValueError: another shape, or memory that another output or an input has a part of.
        RuntimeError: another device, or a gradient to record, which would be lost.
    """
    buffers = (out,) if signature.outputs == 1 else out
    if not isinstance(buffers, (tuple, list)) or len(buffers) != signature.outputs:
        length = f" of {len(out)}" if isinstance(out, (tuple, list)) else ""
        raise TypeError(f"out: expected a tuple of {signature.outputs} tensors, got {type(out).__name__}{length}")
    first, leader = arguments[0], signature.fields[0].name
    dtype = signature.output_dtype(arguments)
    inputs = [(field.name, value) for field, value in signature.described(arguments) if isinstance(value, Tensor)]
    recorded = signature.differentiable and any(value.requires_grad for _, value in inputs)
    names = ["out"] if signature.outputs == 1 else [f"out[{place}]" for place in range(signature.outputs)]
    for name, buffer in zip(names, buffers, strict=True):
        if not isinstance(buffer, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(buffer).__name__}")
        if buffer.dtype != dtype:
            raise TypeError(f"{name}: expected {dtype}, the promoted dtype of all real inputs, got {buffer.dtype}")
        if buffer.shape != first.shape:
            raise ValueError(f"{name}: expected shape {tuple(first.shape)} like {leader}, got {tuple(buffer.shape)}")
        if buffer.device != first.device:
            raise RuntimeError(f"{name}: expected a tensor on {first.device} like {leader}, got one on {buffer.device}")
        if torch.is_grad_enabled() and (recorded or buffer.requires_grad):
            raise RuntimeError(
                f"{name}: no gradient is recorded through out; call inside torch.no_grad(), or without it"
            )
    if not torch.compiler.is_compiling():
        for place, (name, buffer) in enumerate(zip(names, buffers, strict=True)):
            others = [*inputs, *zip(names[:place], buffers[:place], strict=True)]
            _check_memory(name, buffer, others)
    return tuple(buffers)


def _check_memory(name: str, buffer: Tensor, others: Sequence[tuple[str, Tensor]]) -> None:
    if buffer.device.type == "meta" or type(buffer) is not Tensor:
        return
    if any(stride == 0 and size > 1 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
        raise ValueError(f"{name}: expected memory of its own for every step, got strides {buffer.stride()}")
    for other_name, other in others:
        if type(other) in PLAIN and _share_memory(buffer, other):
            raise ValueError(f"{name}: expected memory of its own, but it overlaps {other_name}")


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have an element in common, or it would take long to find out."""
    if one.numel() == 0 or other.numel() == 0:
        return False
    # In bytes: one.data_ptr() + i + (byte of an element) == other.data_ptr() + j + (byte of an element).
    axes, other_axes = _axes_in_bytes(one), _axes_in_bytes(other)
    last, other_last = _last(axes), _last(other_axes)
    distance = other.data_ptr() - one.data_ptr()
    if distance > last or -distance > other_last:
        return False
    # i - j == distance; an index from the back in place of -j makes all terms positive.
    longest_first = sorted((*axes, *other_axes), key=lambda axis: -axis[1])
    return _is_sum_of(distance + other_last, longest_first, [MOST_TRIALS])


def _axes_in_bytes(tensor: Tensor) -> list[tuple[int, int]]:
    """(size, stride) of every axis that leads anywhere; the bytes of an element are one more."""
    width = tensor.element_size()
    axes = [(size, stride * width) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return [axis for axis in (*axes, (width, 1)) if axis[0] > 1]


def _last(axes: Sequence[tuple[int, int]]) -> int:
    """The offset of the last element."""
    return sum((size - 1) * stride for size, stride in axes)


def _is_sum_of(total: int, axes: Sequence[tuple[int, int]], trials: list[int]) -> bool:
    """Whether total is a sum of stride * index over axes (size, stride), the longest strides first."""
    trials[0] -= 1
    if total == 0 or trials[0] < 0:
        return True
    if not axes or total < 0:
        return False
    (size, stride), rest = axes[0], axes[1:]
    least = max(0, -((_last(rest) - total) // stride))
    return any(
        _is_sum_of(total - index * stride, rest, trials) for index in range(least, min(size - 1, total // stride) + 1)
    )
