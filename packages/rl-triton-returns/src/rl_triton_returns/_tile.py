"""The discounted return on a GPU tile: the map of a step, and what it emits."""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import ended, interrupted


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    reward, terminated, truncated, bootstrap, gamma = step
    if gamma is None:
        gamma = numbers[0]
    u = reward
    if bootstrap is not None:
        goes_on_outside = interrupted(truncated, at_open_end) & ~terminated
        u = tl.where(goes_on_outside, reward + gamma * bootstrap, reward)
    elif row_values[0] is not None:
        u = tl.where(at_open_end & ~terminated, reward + gamma * row_values[0], reward)
    return u, gamma, ended(terminated, truncated)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)
