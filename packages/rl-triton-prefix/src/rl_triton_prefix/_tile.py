"""Episodic prefix sums on a GPU tile: the map of a step under both flag conventions, and what it emits."""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import cut_before


@triton.jit
def ends_at_coefficients(step, neighbour, at_open_end, row_values, numbers):
    u, done = step
    if row_values[0] is not None:
        # Nothing cuts the first step: what stands before it in memory, if anything, is another row's.
        u = tl.where(at_open_end, u + row_values[0], u)
    return u, tl.full([], 1.0, u.dtype), cut_before(done, neighbour[1], False)


@triton.jit
def starts_at_coefficients(step, neighbour, at_open_end, row_values, numbers):
    u, done = step
    if row_values[0] is not None:
        u = tl.where(at_open_end & ~done, u + row_values[0], u)
    return u, tl.full([], 1.0, u.dtype), cut_before(done, neighbour[1], True)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)
