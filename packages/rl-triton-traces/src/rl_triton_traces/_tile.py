"""Eligibility traces on a GPU tile: the map of a step for every kind of trace, and what it emits.

With ratios, the scanned state is a trace before its own ratio multiplies it; that of the step before is in the decay.
"""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import cut_before


@triton.jit
def seeded(u, decay, seed, opens):
    """u with the decayed seed in it, where a step opens a row.

    Nothing cuts the first step: what stands before it in memory, if anything, is another row's.
    """
    if seed is not None:
        return tl.where(opens, u + decay * seed, u)
    else:
        return u


@triton.jit
def accumulating_coefficients(step, neighbour, at_open_end, row_values, numbers):
    decay = numbers[0] * numbers[1]
    return seeded(step[0], decay, row_values[0], at_open_end), decay, cut_before(step[1], neighbour[1], False)


@triton.jit
def weighted_accumulating_coefficients(step, neighbour, at_open_end, row_values, numbers):
    u, _, cut = accumulating_coefficients(step, neighbour, at_open_end, row_values, numbers)
    return u, neighbour[4] * numbers[2], cut


@triton.jit
def replacing_coefficients(step, neighbour, at_open_end, row_values, numbers):
    decay = numbers[0] * numbers[1]
    replaces = step[0] != 0
    u = seeded(step[0], decay, row_values[0], at_open_end & ~replaces)
    return u, decay, cut_before(step[1], neighbour[1], False) | replaces


@triton.jit
def weighted_replacing_coefficients(step, neighbour, at_open_end, row_values, numbers):
    u, _, cut = replacing_coefficients(step, neighbour, at_open_end, row_values, numbers)
    return u, neighbour[4] * numbers[2], cut


@triton.jit
def dutch_coefficients(step, neighbour, at_open_end, row_values, numbers):
    decay = numbers[3] * (1.0 - numbers[2] * step[0])
    return seeded(step[0], decay, row_values[0], at_open_end), decay, cut_before(step[1], neighbour[1], False)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)


@triton.jit
def weighted_emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (step[4] * state[0],)
