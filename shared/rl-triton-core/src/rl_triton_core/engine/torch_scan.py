"""The scan in plain PyTorch, for every device without Triton.

    y[t] = u[t]                             where cut[t], and at the open end (the last step if reverse, else the first)
    y[t] = u[t] + decay[t] * y[neighbour]   elsewhere; neighbour = t + 1 if reverse, else t - 1

Three strategies, chosen by `choose_plan`:

* loop: over time, on a [steps, rows] buffer, one operation a step;
* blocks: all rows end to end as one sequence (a row's open end is one more cut), split into equal blocks that the same
  loop walks side by side: once for what each block makes of no state, and, after a doubling over the blocks has told
  the state that enters each, once more for the result. Two passes whatever the length, with the rounding of a loop;
* doubling: the same sequence, every step combined with the one 1, 2, 4, ... steps on, until no weight is left.

Cutting is selection. On the CPU, where selecting takes several times as long as arithmetic, a cut is first tried as a
weight of zero. What is not finite then stays so to the end of its column, or in place where there are no columns: if
all is finite there, nothing crossed a cut, and otherwise the doubling starts over with selection. Other devices select
from the start, because looking at a number would make them wait, and so does whoever only traces the operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rl_triton_core.engine.modes import numbers_can_be_read
from rl_triton_core.engine.precision import widest_dtype

# About how many steps "blocks" works on at once: whole rows, and buffers of a few megabytes however many there are.
GROUP = 1 << 20


class Plan(NamedTuple):
    """How to scan: the strategy, and for "blocks" the steps of a block."""

    strategy: str
    block: int = 0


def choose_plan(rows: int, steps: int, *, time_major: bool, one_decay: bool, readable: bool) -> Plan:
    """The cheapest way through `rows` times `steps`, as measured on 2 cores with PyTorch 2.13.

    A step of the loop costs 2.5 us and 0.5 ns per column; transposing a buffer about as much as three passes over it.
    """
    size = rows * steps
    if not readable:
        return Plan("doubling")  # the fewest launches
    if time_major and steps <= max(64, rows):
        return Plan("loop")  # nothing to transpose, and enough rows to outweigh the cost of an operation
    if one_decay and size <= 131072:
        return Plan("doubling")
    if steps <= min(256, rows // 16):
        return Plan("loop")  # one pass in place of two
    if size <= 65536:
        return Plan("blocks", 16)
    # From 32768 columns on, more steps to a block cost less than more blocks do.
    return Plan("blocks", min(max(32, max(steps, min(size, GROUP)) // 32768), 1024))


def scan_steps(u: Tensor, decay: Tensor | float, cut: Tensor | None, *, dim: int, reverse: bool) -> Tensor:
    """Scan `u` along `dim`; `differentiable_scan` is the form with derivatives.

    Args:
        u: any number of dimensions, float32 or float64.
        decay: one number for all steps, or a tensor of the shape and dtype of `u`.
        cut: a bool tensor of the shape of `u`; None for no cuts.
        dim: the time axis, not negative.
        reverse: whether a step's neighbour is the next one.

    Returns:
        y, in the memory layout of `u`. No argument is modified.
    """
    if u.numel() == 0:
        return torch.empty_like(u)
    steps = u.shape[dim]
    readable = numbers_can_be_read(u)
    time_first = u.movedim(dim, 0)
    time_major = time_first.is_contiguous()
    one_decay = not isinstance(decay, Tensor)
    plan = choose_plan(u.numel() // steps, steps, time_major=time_major, one_decay=one_decay, readable=readable)
    weights, scale = _weights(decay, cut)

    if plan.strategy == "loop":
        columns = _copied(time_first).view(steps, -1)
        if weights is not None:
            _walk(columns, _copied(weights.movedim(dim, 0), u.dtype).view(steps, -1), scale, reverse)
        else:
            _walk(columns, None, scale, reverse)
        if _all_finite(columns[0 if reverse else -1]):
            return _in_layout_of(u, columns.view(time_first.shape).movedim(0, dim))

    time_last = u.movedim(dim, -1)
    sequence = time_last.reshape(-1)
    links = _without_open_ends(weights, u, dim, reverse).movedim(dim, -1).reshape(-1)
    finite = False
    if plan.strategy == "blocks":
        y = torch.empty_like(sequence)
        group = max(1, GROUP // steps) * steps
        parts = zip(*(torch.split(x, group) for x in (sequence, links, y)), strict=True)
        finite = all(_scan_blocks(u_part, w, out, scale, steps, reverse, plan.block) for u_part, w, out in parts)
    elif plan.strategy == "doubling" and one_decay and readable:
        y = _double(sequence, links, scale, steps, reverse, select=False)
        finite = _all_finite(y)
    if not finite:
        y = _double(sequence, links, scale, steps, reverse, select=True)
    return _in_layout_of(u, y.view(time_last.shape).movedim(-1, dim))


def _weights(decay: Tensor | float, cut: Tensor | None) -> tuple[Tensor | None, float]:
    """Weights and a scale: a step's neighbour counts weight * scale. Weights are 0 at a cut, None if all are 1.

    With one decay the weights are 0 or 1, and int8 until they are laid out: PyTorch is slow on bool.
    """
    if isinstance(decay, Tensor):
        return (decay if cut is None else torch.where(cut, 0.0, decay)), 1.0
    return (None if cut is None else 1 - cut.view(torch.int8)), decay


def _without_open_ends(weights: Tensor | None, u: Tensor, dim: int, reverse: bool) -> Tensor:
    """The weights, owned, with 0 at the open end of every row."""
    links = torch.ones_like(u, dtype=torch.int8) if weights is None else weights.clone()
    links.select(dim, -1 if reverse else 0).zero_()
    return links


def _copied(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous copy, also of what is contiguous already."""
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device).copy_(x)


def _in_layout_of(u: Tensor, y: Tensor) -> Tensor:
    like_u = torch.empty_like(u)
    alone = y.untyped_storage().nbytes() == y.numel() * y.element_size()
    return y if alone and y.stride() == like_u.stride() else like_u.copy_(y)


def _all_finite(x: Tensor) -> bool:
    """Whether all numbers are finite; a sum that overflows counts as no, which costs time only."""
    return math.isfinite(x.sum().item())


def _walk(columns: Tensor, weights: Tensor | None, scale: float, reverse: bool, state: Tensor | None = None) -> None:
    """Scan [steps, columns] in place, every column from its entry of `state` (None: from nothing)."""
    order = -1 if reverse else 1
    u = columns.unbind(0)[::order]
    y = u[0]
    if weights is None:
        for step in u[1:]:
            y = step.add_(y, alpha=scale)
        return
    weight = weights.unbind(0)[::order]
    if state is not None:
        y.addcmul_(weight[0], state, value=scale)
    for step, w in zip(u[1:], weight[1:], strict=True):
        y = step.addcmul_(w, y, value=scale)


def _walk_to_end(columns: Tensor, weights: Tensor, scale: float, reverse: bool) -> Tensor:
    """The last state of every column, each started from nothing."""
    order = -1 if reverse else 1
    u = columns.unbind(0)[::order]
    y = u[0].clone()
    for step, w in zip(u[1:], weights.unbind(0)[::order][1:], strict=True):
        torch.addcmul(step, w, y, value=scale, out=y)
    return y


def _scan_blocks(u: Tensor, weights: Tensor, y: Tensor, scale: float, steps: int, reverse: bool, block: int) -> bool:
    """Scan a sequence by blocks into `y`; False if anything was not finite."""
    size = u.numel()
    columns = _in_blocks(u, block, u.dtype)
    links = _in_blocks(weights, block, u.dtype)
    blocks = columns.shape[1]
    # In float32 the rounding of a product would compound; zeros and ones have none.
    block_weights = (
        links.prod(0).to(torch.int8) if weights.dtype == torch.int8 else links.prod(0, dtype=widest_dtype(u))
    )
    last = _walk_to_end(columns, links, scale, reverse)
    last = _double(last, block_weights, scale**block, min(blocks, steps // block + 2), reverse, select=False)
    entering = torch.zeros_like(last)
    if reverse:
        entering[:-1] = last[1:]
    else:
        entering[1:] = last[:-1]
    _walk(columns, links, scale, reverse, entering)
    if blocks * block == size:
        y.view(blocks, block).copy_(columns.t())
    else:
        y.copy_(columns.t().reshape(-1)[:size])
    return _all_finite(columns[0 if reverse else -1])


def _in_blocks(x: Tensor, block: int, dtype: torch.dtype) -> Tensor:
    """A sequence as [block, blocks]: column i holds its i-th block. The last one is filled up with zeros."""
    blocks = -(-x.numel() // block)
    if blocks * block != x.numel():
        x = torch.nn.functional.pad(x, (0, blocks * block - x.numel()))
    return _copied(x.view(blocks, block).t(), dtype)


def _double(u: Tensor, weights: Tensor, scale: float, steps: int, reverse: bool, *, select: bool) -> Tensor:
    """Scan a sequence of which no two steps further apart than `steps` - 1 are linked, by doubling.

    After the level of shift s, y holds the last 2s steps, and the state 2s steps away counts a product of weights (in
    float64 unless all are 0 or 1, since squaring a rounded weight doubles its error) times a power of the scale.
    """
    size = u.numel()
    longest = 1 << max(steps - 1, 1).bit_length() - 1
    zeros_and_ones = weights.dtype == torch.int8
    readable = numbers_can_be_read(u)
    weight_dtype = u.dtype if zeros_and_ones else widest_dtype(u)
    start = 0 if reverse else longest
    y, new_y = (_padded(size, longest, start, u.new_empty(0)) for _ in range(2))
    weight, new_weight = (_padded(size, longest, start, u.new_empty(0, dtype=weight_dtype)) for _ in range(2))
    y.own.copy_(u)
    weight.own.copy_(weights)
    smallest = torch.finfo(u.dtype).smallest_normal * torch.finfo(u.dtype).eps

    shift = 1
    while shift < steps and scale**shift > smallest / 2:
        inner = start + (shift if reverse else -shift)
        inner_y, inner_weight = y.whole[inner : inner + size], weight.whole[inner : inner + size]
        factor = weight.own.to(u.dtype)
        if select:
            inner_y = torch.where(factor == 0, 0.0, inner_y)
        torch.addcmul(y.own, factor, inner_y, value=scale**shift, out=new_y.own)
        y, new_y = new_y, y
        shift *= 2
        if shift >= steps:
            break
        torch.mul(weight.own, inner_weight, out=new_weight.own)
        if select:
            # A cut on either side cuts the whole, also where the other weight is inf or NaN.
            new_weight.own.masked_fill_((weight.own == 0) | (inner_weight == 0), 0.0)
        weight, new_weight = new_weight, weight
        # Weights of 0 and 1 sum up to 0 only if all are; the sum is the faster test by far.
        if readable and not (weight.own.sum() if zeros_and_ones else weight.own.any()):
            break
    return y.own


class _Padded(NamedTuple):
    """A sequence, and the buffer around it with zeros beyond the open end: every step has a neighbour to read."""

    whole: Tensor
    own: Tensor


def _padded(size: int, padding: int, start: int, like: Tensor) -> _Padded:
    whole = like.new_empty(size + padding)
    whole[:start].zero_()
    whole[start + size :].zero_()
    return _Padded(whole, whole[start : start + size])
