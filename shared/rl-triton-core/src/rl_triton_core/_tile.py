"""The segmented scan on a GPU tile."""

import triton
import triton.language as tl


@triton.jit
def coefficients_without_initial(step, neighbour, at_open_end, row_values, numbers):
    u, decay, cut = step
    if decay is None:
        decay = numbers[0]
    if cut is None:
        cut = at_open_end ^ at_open_end
    return u, decay, cut


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    u, decay, reset = coefficients_without_initial(step, neighbour, at_open_end, row_values, numbers)
    if row_values[0] is not None:
        u = tl.where(at_open_end & ~reset, u + decay * row_values[0], u)
    return u, decay, reset


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)
