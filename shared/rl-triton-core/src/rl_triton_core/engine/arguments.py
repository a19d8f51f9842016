"""Validation: every error a call can raise about its tensors, numbers and shapes, before any work is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm, Field

_NUMBER_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)


def check_arguments(
    algorithm: Algorithm, fields: Sequence[Any], row_fields: Sequence[Any], time_dim: int
) -> tuple[list[Tensor | float | None], list[Tensor | None], int]:
    """Check one call's arguments and return them with floats for numbers and a non-negative time axis.

    The first field is the one whose shape, device and batch axes all others follow.

    Raises:
        TypeError: an argument that is not a tensor (or a number), or has a dtype that is no real number.
        ValueError: a shape or a range.
        RuntimeError: tensors on different devices.
    """
    for field, value in zip((*algorithm.fields, *algorithm.row_fields), (*fields, *row_fields), strict=True):
        _check_type(field, value)
    leader, first = algorithm.fields[0], fields[0]
    dim = check_time_dim(leader.name, first, time_dim)
    checked: list[Tensor | float | None] = []
    for field, value in zip(algorithm.fields, fields, strict=True):
        if isinstance(value, Tensor):
            _check_step_shape(field.name, value, leader.name, first, time_dim)
            checked.append(value.resolve_neg())
        elif value is None:
            checked.append(None)
        else:
            checked.append(check_fraction(field.name, value))
    for field, value in zip(algorithm.row_fields, row_fields, strict=True):
        if value is not None:
            _check_row_shape(field.name, value, leader.name, first, dim, time_dim)
    for field, value in zip((*algorithm.fields, *algorithm.row_fields), (*fields, *row_fields), strict=True):
        if isinstance(value, Tensor) and value.device != first.device:
            raise RuntimeError(
                f"{field.name}: expected a tensor on {first.device} like {leader.name}, got one on {value.device}"
            )
    return checked, [value if value is None else value.resolve_neg() for value in row_fields], dim


def check_time_dim(name: str, tensor: Tensor, time_dim: Any) -> int:
    """The time axis as a non-negative index into `tensor`, the call's first argument."""
    if isinstance(time_dim, bool) or not isinstance(time_dim, int):
        raise TypeError(f"time_dim: expected an int, got {type(time_dim).__name__}")
    axes = tensor.dim()
    if axes == 1 and time_dim == 1:
        raise ValueError(
            f"time_dim: {name} has one dimension, so there is no axis 1; pass time_dim=0 for a single trajectory"
        )
    if axes == 0:
        raise ValueError(f"{name}: expected at least one dimension (time), got a tensor of shape ()")
    if not -axes <= time_dim < axes:
        raise ValueError(
            f"time_dim: expected an axis of {name} {tuple(tensor.shape)} in [{-axes}, {axes - 1}], got {time_dim}"
        )
    return time_dim % axes


def check_fraction(name: str, value: Any) -> float:
    """A discount or a mixing weight: a number in [0, 1]."""
    number = value if type(value) is float else float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name}: expected a number in [0, 1], got {number}")
    return number


def check_exclusive(**arguments: Any) -> None:
    """At most one of the arguments may be given."""
    given = [name for name, value in arguments.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]}: expected at most one of {', '.join(arguments)}, got {len(given)}")


def _check_type(field: Field, value: Any) -> None:
    if value is None:
        if field.required:
            raise TypeError(f"{field.name}: expected a torch.Tensor, got None")
        return
    if isinstance(value, Tensor):
        if field.flag:
            if value.is_complex():
                raise TypeError(f"{field.name}: expected flags of a real dtype, got {value.dtype}")
        elif value.dtype not in _NUMBER_DTYPES:
            raise TypeError(
                f"{field.name}: expected float16, bfloat16, float32, float64 or an integer dtype, got {value.dtype}"
            )
        return
    if field.scalar and isinstance(value, Real):
        if math.isnan(float(value)):
            raise ValueError(f"{field.name}: expected a number in [0, 1], got nan")
        return
    expected = "a float or a torch.Tensor" if field.scalar else "a torch.Tensor"
    hint = "; convert it with torch.from_numpy" if type(value).__module__.split(".")[0] == "numpy" else ""
    raise TypeError(f"{field.name}: expected {expected}, got {type(value).__name__}{hint}")


def _check_step_shape(name: str, tensor: Tensor, leader: str, first: Tensor, time_dim: int) -> None:
    if tensor.shape == first.shape:
        return
    raise ValueError(
        f"{name}: expected shape {tuple(first.shape)} like {leader}, got {tuple(tensor.shape)}"
        + ("; a step's tensors are never broadcast, use expand_as" if tensor.dim() != first.dim() else "")
    )


def _check_row_shape(name: str, tensor: Tensor, leader: str, first: Tensor, dim: int, time_dim: int) -> None:
    shape = tuple(first.shape)
    expected = shape[:dim] + shape[dim + 1 :]
    if tuple(tensor.shape) == expected:
        return
    hint = ""
    if dim != 0 and tuple(tensor.shape) == shape[1:]:
        hint = f"; pass time_dim=0 if the first axis of {leader} is time"
    raise ValueError(
        f"{name}: expected shape {expected} ({leader} {shape} without its time axis {time_dim}), "
        f"got {tuple(tensor.shape)}{hint}"
    )
