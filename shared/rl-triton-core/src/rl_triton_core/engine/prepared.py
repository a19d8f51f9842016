"""Prepared calls: what was worked out for a combination of shapes, strides, dtypes, device and arguments present.

Only plain tensors on a GPU with no gradient to record have a key to be found by. Whoever asks has seen to it that no
mode or transform of PyTorch wants to watch the call.
"""

from __future__ import annotations

import functools
import importlib.util
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm
from rl_triton_core.engine.environment import INTERPRETER
from rl_triton_core.engine.launcher import KernelCall

# Tensors that are nothing but themselves; others may want to see what is done with them.
PLAIN = (Tensor, torch.nn.Parameter)

MOST_PREPARED_CALLS = 1024
_prepared_calls: OrderedDict[Any, KernelCall] = OrderedDict()


def key_of(algorithm: Algorithm, arguments: tuple[Any, ...], time_dim: Any) -> Any:
    """What a prepared call is kept under, or None where this call must not be looked up."""
    if arguments[0].__class__ is not Tensor or not arguments[0].is_cuda:
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


def find(key: Any) -> KernelCall | None:
    """The call kept under a key, if there is one."""
    return None if key is None else _prepared_calls.get(key)


def prepare(
    algorithm: Algorithm,
    fields: Sequence[Tensor | float | None],
    row_fields: Sequence[Tensor | None],
    dim: int,
    key: Any = None,
    out: tuple[Tensor, ...] = (),
) -> KernelCall:
    """A new call for checked arguments (and buffers to write into), kept under its key if it has one."""
    call = KernelCall(algorithm, fields, row_fields, dim, out)
    if key is not None:
        _prepared_calls[key] = call
        if len(_prepared_calls) > MOST_PREPARED_CALLS:
            _prepared_calls.popitem(last=False)
    return call


def call_for(
    algorithm: Algorithm,
    fields: Sequence[Tensor | float | None],
    row_fields: Sequence[Tensor | None],
    dim: int,
    out: tuple[Tensor, ...] = (),
) -> KernelCall:
    """The call for checked arguments (and buffers to write into): the one that is kept, or a new one."""
    key = key_of(algorithm, (*fields, *row_fields, *out), dim)
    return find(key) or prepare(algorithm, fields, row_fields, dim, key, out)


def kernel_serves(arguments: Sequence[Tensor | float | None]) -> bool:
    """Whether the kernel can run on checked arguments: plain tensors where Triton is."""
    tensors = [value for value in arguments if isinstance(value, Tensor)]
    if tensors[0].device.type != "cuda" and not (INTERPRETER and tensors[0].device.type == "cpu"):
        return False
    return _triton_is_installed() and all(type(tensor) in PLAIN for tensor in tensors)


@functools.cache
def _triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None
