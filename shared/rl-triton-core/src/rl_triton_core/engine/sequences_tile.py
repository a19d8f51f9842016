"""Packed sequences on a GPU tile: which of them holds a step, and whether it stands at the open end.

What is asked of `cu_seqlens` is how many sequences have begun (offsets are at most t) at a step. The first of a tile
and the one behind its last are asked for once, by all threads together; these are mostly the same, or few apart, so
that every step then finds its own number in a search that is as short.
"""

import triton
import triton.language as tl

# How many offsets are looked at together.
PROBES = tl.constexpr(128)


@triton.jit
def begun_in_all(offsets, stride, low, high, t):
    """How many offsets are at most t, one number, if it is known to be from `low` to `high`."""
    probes = tl.arange(0, PROBES)
    while low < high:
        apart = tl.cdiv(high - low, PROBES)
        probe = low + (probes + 1) * apart - 1
        mask = probe < high
        is_passed = mask & (tl.load(offsets + probe * stride, mask, other=0) <= t)
        low += tl.sum(is_passed.to(tl.int32)) * apart
        high = tl.minimum(high, low + apart - 1)
    return low


@triton.jit
def begun(offsets, stride, low, high, t):
    """The same for every step of a tile, each by itself."""
    span = high - low
    low = low + tl.zeros_like(t)
    high = high + tl.zeros_like(t)
    while span > 0:
        middle = (low + high) // 2
        mask = low < high
        is_passed = mask & (tl.load(offsets + middle * stride, mask, other=0) <= t)
        high = tl.where(mask & ~is_passed, middle, high)
        low = tl.where(is_passed, middle + 1, low)
        span = span // 2
    return low
