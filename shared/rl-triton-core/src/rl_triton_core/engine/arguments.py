"""Validation: every error a call can raise about its tensors, numbers and shapes, before any work is done."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Field, Signature

_NUMBER_DTYPES = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    | {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
)


def check_arguments(
    signature: Signature, fields: Sequence[Any], row_fields: Sequence[Any], time_dim: int
) -> tuple[list[Tensor | float | None], list[Tensor | None], int]:
    """Check one call's arguments and return them with floats for numbers and a non-negative time axis.

    The first field is the one whose shape, device and batch axes all others follow.

    Raises:
        TypeError: an argument that is not a tensor (or a number), or has a dtype that is no real number.
        ValueError: a shape or a range.
        RuntimeError: tensors on different devices.
    """
    for field, value in signature.described((*fields, *row_fields)):
        _check_type(field, value)
    leader, first = signature.fields[0], fields[0]
    dim = check_time_dim(leader.name, first, time_dim)
    if signature.packed:
        _check_packed(leader.name, first, dim, time_dim, signature.row_fields[-1], row_fields[-1])
    widest = _widest(signature, fields, row_fields)
    checked: list[Tensor | float | None] = []
    for field, value in zip(signature.fields, fields, strict=True):
        if isinstance(value, Tensor):
            if field.wide:
                _check_wide_shape(field, value, leader.name, tuple(first.shape), widest)
            else:
                _check_step_shape(field, value, leader.name, first)
            checked.append(value.resolve_neg())
        elif value is None:
            checked.append(None)
        else:
            checked.append(check_number(field, value))
    row_shape, row_of = _row_shape(signature, leader.name, first, row_fields, dim, time_dim)
    for field, value in zip(signature.row_fields, row_fields, strict=True):
        if value is None or field.offsets:
            continue
        if field.wide:
            _check_wide_shape(field, value, row_of, row_shape, widest)
        elif tuple(value.shape) != row_shape:
            hint = ""
            if dim != 0 and tuple(value.shape) == tuple(first.shape[1:]):
                hint = f"; pass time_dim=0 if the first axis of {leader.name} is time"
            raise ValueError(f"{field.name}: expected shape {row_shape} ({row_of}), got {tuple(value.shape)}{hint}")
    for field, value in signature.described((*fields, *row_fields)):
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


def check_number(field: Field, value: Any) -> float:
    """One number for all steps, within the range of its field."""
    assert field.numbers is not None
    low, high, expected = field.numbers
    try:
        number = value if type(value) is float else float(value)
    except OverflowError:
        raise ValueError(f"{field.name}: expected {expected}, got an integer beyond the range of a float") from None
    if not low <= number <= high:
        raise ValueError(f"{field.name}: expected {expected}, got {number}")
    return number


def check_exclusive(**arguments: Any) -> None:
    """At most one of the arguments may be given."""
    given = [name for name, value in arguments.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]}: expected at most one of {', '.join(arguments)}, got {len(given)}")


def check_choice(name: str, value: Any, choices: Collection[str | None], *, takes_none: bool = False) -> None:
    """Check that an argument is one of several names.

    Raises:
        TypeError: not a str; None is none either, unless `takes_none`.
        ValueError: another value of these types.
    """
    is_name = isinstance(value, str) or (takes_none and value is None)
    if is_name and value in choices:
        return
    *others, last = map(repr, choices)
    expected = f"{name}: expected {', '.join(others)} or {last}"
    if is_name:
        raise ValueError(f"{expected}, got {value!r}")
    raise TypeError(f"{expected}, got {type(value).__name__}")


def _check_type(field: Field, value: Any) -> None:
    if value is None:
        if field.required:
            raise TypeError(f"{field.name}: expected {_expected(field)}, got None")
    elif isinstance(value, Tensor) and field.per_step:
        _check_tensor(field, value)
    elif field.numbers is None or not isinstance(value, Real):
        raise TypeError(f"{field.name}: expected {_expected(field)}, got {type(value).__name__}{_hint(field, value)}")


def _check_tensor(field: Field, value: Tensor) -> None:
    if value.layout != torch.strided:
        raise TypeError(f"{field.name}: expected a dense tensor, got layout {value.layout}; convert it with to_dense()")
    if field.flag:
        if value.is_complex():
            raise TypeError(f"{field.name}: expected flags of a real dtype, got {value.dtype}")
    elif field.index:
        if value.dtype not in _NUMBER_DTYPES or value.is_floating_point():
            raise TypeError(f"{field.name}: expected an integer dtype, got {value.dtype}")
    elif value.dtype not in _NUMBER_DTYPES:
        raise TypeError(
            f"{field.name}: expected float16, bfloat16, float32, float64 or an integer dtype, got {value.dtype}"
        )


def _expected(field: Field) -> str:
    if field.numbers is None:
        return "a torch.Tensor"
    return "a float or a torch.Tensor" if field.per_step else "a float"


def _hint(field: Field, value: Any) -> str:
    library = type(value).__module__.split(".")[0]
    if field.numbers is not None and library in ("numpy", "torch"):
        if value.ndim == 0:
            return "; convert it with float()"
        if not field.per_step:
            return "; it is one number for all steps"
    return "; convert it with torch.from_numpy" if library == "numpy" else ""


def _check_step_shape(field: Field, tensor: Tensor, leader: str, first: Tensor) -> None:
    if tensor.shape == first.shape:
        return
    hint = ""
    if tensor.dim() == 0 and field.numbers is not None:
        hint = "; pass one number for all steps as a float"
    elif tensor.dim() != first.dim():
        hint = "; a step's tensors are never broadcast, use expand_as"
    raise ValueError(
        f"{field.name}: expected shape {tuple(first.shape)} like {leader}, got {tuple(tensor.shape)}{hint}"
    )


def _widest(signature: Signature, fields: Sequence[Any], row_fields: Sequence[Any]) -> tuple[str, int] | None:
    """The first wide field of a call, and the length of its last axis, which is that of all others."""
    for field, value in signature.described((*fields, *row_fields)):
        if field.wide and value is not None:
            return field.name, value.shape[-1] if value.dim() else 0
    return None


def _check_wide_shape(
    field: Field, tensor: Tensor, leader: str, shape: tuple[int, ...], widest: tuple[str, int] | None
) -> None:
    assert widest is not None
    first, length = widest
    if tuple(tensor.shape[:-1]) != shape or tensor.dim() == 0:
        raise ValueError(
            f"{field.name}: expected shape ({', '.join(map(str, (*shape, 'A')))}), like {leader} with a last axis of A "
            f"actions, got {tuple(tensor.shape)}"
        )
    if length == 0:
        raise ValueError(
            f"{field.name}: expected at least one action in the last axis, got shape {tuple(tensor.shape)}"
        )
    if tensor.shape[-1] != length:
        raise ValueError(
            f"{field.name}: expected a last axis of {length} actions like {first}, got {tensor.shape[-1]} in "
            f"{tuple(tensor.shape)}"
        )


def _check_packed(leader: str, first: Tensor, dim: int, time_dim: int, field: Field, offsets: Tensor) -> None:
    if dim != 0:
        raise ValueError(
            f"time_dim: expected 0 with {field.name}, which packs sequences along the first axis of {leader}, got "
            f"{time_dim}"
        )
    if offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{field.name}: expected int32 or int64, got {offsets.dtype}")
    if offsets.dim() != 1 or offsets.numel() == 0:
        raise ValueError(
            f"{field.name}: expected shape (num_sequences + 1,), where every sequence begins and the last one ends, "
            f"got {tuple(offsets.shape)}"
        )


def _row_shape(
    signature: Signature, leader: str, first: Tensor, row_fields: Sequence[Any], dim: int, time_dim: int
) -> tuple[tuple[int, ...], str]:
    """What a tensor with one value a row (or, packed, a sequence) is shaped like, and how an error says so."""
    shape = tuple(first.shape)
    if signature.packed:
        sequences = row_fields[-1].shape[0] - 1
        return (
            sequences,
            *shape[1:],
        ), f"the {sequences} sequences of {signature.row_fields[-1].name}, {leader} {shape}"
    return shape[:dim] + shape[dim + 1 :], f"{leader} {shape} without its time axis {time_dim}"
