"""warmup: what it calls a function with."""

from __future__ import annotations

from typing import Any

import torch
from rl_triton_core import segmented_scan, warmup
from torch import Tensor


def test_zeros_of_the_same_layout_take_the_place_of_tensors() -> None:
    seen: list[Any] = []

    def function(*arguments: Any, **keywords: Any) -> Tensor:
        seen.extend((*arguments, keywords["scale"]))
        return arguments[0] * 2.0

    transposed = torch.empty(3, 4, dtype=torch.float64, device="meta", requires_grad=True).t()
    leaf = torch.ones(2, requires_grad=True)
    warmup(function, transposed, leaf, 5, device="cpu", scale=0.5)
    for given, one in zip((transposed, leaf), seen, strict=False):
        assert (given.shape, given.stride(), given.dtype) == (one.shape, one.stride(), one.dtype)
        assert given.requires_grad == one.requires_grad
        assert one.device.type == "cpu"
        assert not one.any()
    assert seen[0].grad is not None, "the backward pass is part of what is compiled"
    assert seen[2:] == [5, 0.5]
    assert leaf.grad is None


def test_a_call_without_gradients() -> None:
    x = torch.empty(2, 3, device="meta")
    warmup(segmented_scan, x, x, device="cpu", reverse=True)
