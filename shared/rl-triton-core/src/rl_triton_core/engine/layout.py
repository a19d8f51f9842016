"""How a tensor lies in memory, as the kernel walks it: a stride along time and at most two along the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_triton_core.engine.environment import warn_performance


class Strides(NamedTuple):
    """Strides in elements. A row is an index over all batch axes, in the order in which they stand.

    Where the batch axes fold into one, `inner_size` is None and row r starts at r * outer; otherwise it starts at
    (r // inner_size) * outer + (r % inner_size) * inner. Of a wide tensor, the last axis is the actions.
    """

    time: int
    outer: int
    inner: int | None
    inner_size: int | None
    action: int = 0
    actions: int = 1

    def extent(self, rows: int, steps: int) -> int:
        """The offset of the last element."""
        last = max(steps - 1, 0) * self.time + (self.actions - 1) * self.action
        if self.inner_size is None or self.inner is None:
            return last + max(rows - 1, 0) * self.outer
        return last + max(rows // self.inner_size - 1, 0) * self.outer + (self.inner_size - 1) * self.inner


def fold_batch(shape: Sequence[int], strides: Sequence[int], dim: int | None) -> Strides | None:
    """Fold a tensor's batch axes (all but `dim`) into as few as its strides allow; None if more than two are left."""
    folded: list[tuple[int, int]] = []
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if axis == dim or size == 1:
            continue
        if folded and folded[-1][1] == stride * size:
            folded[-1] = (folded[-1][0] * size, stride)
        else:
            folded.append((size, stride))
    time = 1 if dim is None or shape[dim] <= 1 else strides[dim]
    if len(folded) == 0:
        return Strides(time, 0, None, None)
    if len(folded) == 1:
        return Strides(time, folded[0][1], None, None)
    if len(folded) == 2:
        return Strides(time, folded[0][1], folded[1][1], folded[1][0])
    return None


def fold_axes(shape: Sequence[int], strides: Sequence[int], dim: int | None, *, wide: bool) -> Strides | None:
    """As `fold_batch`; the last axis of a wide tensor is neither batch nor time."""
    if not wide:
        return fold_batch(shape, strides, dim)
    folded = fold_batch(shape[:-1], strides[:-1], dim)
    if folded is None:
        return None
    # An axis of one entry has no stride to speak of: nothing that vector accesses would have to heed.
    time = 0 if dim is None or shape[dim] <= 1 else folded.time
    return folded._replace(time=time, action=1 if shape[-1] <= 1 else strides[-1], actions=shape[-1])


def in_place_or_copied(name: str, tensor: Tensor, dim: int | None, *, wide: bool = False) -> tuple[Tensor, Strides]:
    """The tensor as it is where the kernel can walk it, else a contiguous copy of it."""
    strides = fold_axes(tensor.shape, tensor.stride(), dim, wide=wide)
    if strides is not None:
        return tensor, strides
    warn_performance(
        f"{name}: copied, because its batch axes (shape {tuple(tensor.shape)}, strides {tensor.stride()}) do not fold "
        f"into two; a contiguous tensor avoids the copy"
    )
    tensor = tensor.contiguous()
    strides = fold_axes(tensor.shape, tensor.stride(), dim, wide=wide)
    assert strides is not None
    return tensor, strides


def laid_out_like(output: Tensor, first: Tensor) -> Tensor:
    """The output with the memory layout that `empty_output` gives it: itself, if it has that."""
    laid_out = empty_output(first, output.dtype)
    return output if laid_out.stride() == output.stride() else laid_out.copy_(output)


def empty_output(like: Tensor, dtype: torch.dtype) -> Tensor:
    """An output with the memory layout of `like`: its order of axes, and contiguous where it is an expanded view."""
    if any(stride == 0 and size > 1 for size, stride in zip(like.shape, like.stride(), strict=True)):
        return torch.empty(like.shape, dtype=dtype, device=like.device)
    return torch.empty_like(like, dtype=dtype, memory_format=torch.preserve_format)
