"""What PyTorch does with operations at the moment: who watches them, and whether numbers can be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Whether a transform of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_tangents() -> bool:
    """Whether tensors may carry tangents, which nothing about them shows."""
    return forward_ad._current_level >= 0


def is_watched() -> bool:
    """Whether a mode, a transform or forward-mode differentiation wants to see the operations of a call."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or is_transformed()
        or has_tangents()
    )


# What a transform hides from the operators that it has called, so that operations go to the next transform.
_HIDDEN_BY_TRANSFORMS = tuple(
    getattr(DispatchKey, name)
    for name in (
        *("Functionalize", "Conjugate", "Negative", "ZeroTensor", "Tracer", "FuncTorchBatched", "BatchedNestedTensor"),
        *("Batched", "VmapMode", "FuncTorchGradWrapper", "DeferredInit", "PythonTLSSnapshot"),
        "FuncTorchDynamicLayerFrontMode",
    )
    if hasattr(DispatchKey, name)
)


def is_inside_operator() -> bool:
    """Whether a transform is at work that has called an operator, and asks it for its derivative."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return is_transformed() and excluded.has(DispatchKey.FuncTorchDynamicLayerFrontMode)


@contextmanager
def outside_operator() -> Iterator[None]:
    """Show operations to transforms again, as before the operator was called."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _HIDDEN_BY_TRANSFORMS:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


def numbers_can_be_read(tensor: Tensor) -> bool:
    """Whether looking at a tensor's numbers is possible, and costs no waiting: a plain tensor on the CPU."""
    return (
        not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and tensor.__class__ in (Tensor, torch.nn.Parameter)
        and torch._C._len_torch_dispatch_stack() == 0
    )


def holds_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers to look at, at the price of waiting for the device: not on meta, not while traced."""
    return not (is_watched() or tensor.device.type == "meta" or torch.compiler.is_compiling())
