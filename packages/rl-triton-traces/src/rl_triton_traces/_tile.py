"""Eligibility traces on a GPU tile: the map of a step, and what it emits."""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import cut_before


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    gradient, done, gamma, lambda_ = step
    decay = numbers[0] * numbers[1]
    if row_values[0] is not None:
        # Nothing cuts the first step: what stands before it in memory, if anything, is another row's.
        gradient = tl.where(at_open_end, gradient + decay * row_values[0], gradient)
    return gradient, decay, cut_before(done, neighbour[1], False)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)
