"""GAE on a GPU tile: the map of a step, and what it emits."""

import triton
import triton.language as tl  # noqa: F401 (the interpreter looks for it where device functions are)
from rl_triton_core._boundaries_tile import continuation, ended, residual


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    reward, value, terminated, truncated, bootstrap, next_value, gamma, lambda_ = step
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    following = continuation(neighbour[1], truncated, at_open_end, bootstrap, next_value, row_values[0])
    return residual(reward, value, terminated, gamma, following), gamma * lambda_, ended(terminated, truncated)


@triton.jit
def coefficients_with_targets_lambda(step, neighbour, at_open_end, row_values, numbers):
    gamma, targets_lambda = step[6], step[8]
    if gamma is None:
        gamma = numbers[0]
    if targets_lambda is None:
        targets_lambda = numbers[2]
    delta, decay, is_cut = coefficients(step[:8], neighbour, at_open_end, row_values, numbers)
    return delta, decay, is_cut, gamma * targets_lambda


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)


@triton.jit
def emit_with_targets(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return state[0], state[0] + step[1]


@triton.jit
def emit_with_targets_lambda(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return state[0], state[1] + step[1]
