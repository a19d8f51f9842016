"""V-trace on a GPU tile: the map of a step, and what it emits.

The scanned state is D = targets - values, so the next step's target is its value plus its state. Leaky V-trace has one
number more, the last one, and weighs by `leaky` where V-trace clips; the rest is the same.
"""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import continuation, ended, residual
from rl_triton_core._policies_tile import clipped, exp


@triton.jit
def leaky(ratio, bound, leak):
    """leak * ratio + (1 - leak) * min(bound, ratio): what lies above the bound counts with a weight of leak."""
    if leak is None:
        return clipped(ratio, bound)
    else:
        return tl.where(ratio > bound, bound + leak * (ratio - bound), ratio)


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    return coefficients_of(step, neighbour, at_open_end, row_values, numbers, None)


@triton.jit
def leaky_coefficients(step, neighbour, at_open_end, row_values, numbers):
    return coefficients_of(step, neighbour, at_open_end, row_values, numbers, numbers[5])


@triton.jit
def coefficients_of(step, neighbour, at_open_end, row_values, numbers, leak):
    (
        reward, value, log_pi_target, log_pi_behavior, terminated, truncated, bootstrap, next_value, gamma, lambda_,
    ) = step[:10]  # fmt: skip
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    following = continuation(neighbour[1], truncated, at_open_end, bootstrap, next_value, row_values[0])
    ratio = exp(log_pi_target - log_pi_behavior)
    delta = leaky(ratio, numbers[2], leak) * residual(reward, value, terminated, gamma, following)
    return delta, gamma * lambda_ * leaky(ratio, numbers[3], leak), ended(terminated, truncated)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return outputs_of(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers, None)


@triton.jit
def leaky_emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return outputs_of(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers, numbers[5])


@triton.jit
def outputs_of(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers, leak):
    (
        reward, value, log_pi_target, log_pi_behavior, terminated, truncated, bootstrap, next_value, gamma, lambda_,
    ) = step[:10]  # fmt: skip
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    following = continuation(neighbour[1], truncated, at_open_end, bootstrap, next_value, row_values[0])
    next_target = neighbour[1] + neighbour_state[0]
    mixed = (1.0 - lambda_) * following + lambda_ * next_target
    q = tl.where(ended(terminated, truncated) | at_open_end, following, mixed)
    ratio = leaky(exp(log_pi_target - log_pi_behavior), numbers[4], leak)
    return value + state[0], ratio * residual(reward, value, terminated, gamma, q)
