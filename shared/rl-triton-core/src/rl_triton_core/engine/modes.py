"""What PyTorch does with operations at the moment: who watches them, and whether numbers can be looked at."""

from __future__ import annotations

import torch
from torch import Tensor
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
