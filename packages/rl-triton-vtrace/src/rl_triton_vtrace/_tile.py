"""V-trace on a GPU tile: the map of a step, and what it emits.

The scanned state is D = targets - values, so the next step's target is its value plus its state.
"""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import continuation, ended
from rl_triton_core._policies_tile import clipped


@triton.jit
def exp(x):
    """e**x, rounded as well as a loop's: what tl.exp approximates in float32 would add up over the steps of an episode.

    x = n * log(2) + rest with |rest| <= log(2) / 2, so e**x = 2**n * e**rest: the power is exact, and of the series of
    e**rest eight terms are left. log(2) is taken in two parts, of which the first makes n * log(2) exact.
    """
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        bounded = tl.minimum(tl.maximum(x, -87.3), 89.0)
        n = tl.floor(bounded * 1.4426950408889634 + 0.5)
        rest = bounded - n * 0.693359375 + n * 2.1219444005469058e-4
        series = 1.0 / 720 + rest * (1.0 / 5040)
        series = 1.0 / 120 + rest * series
        series = 1.0 / 24 + rest * series
        series = 1.0 / 6 + rest * series
        series = 1.0 + (rest + rest * rest * (0.5 + rest * series))
        half_power = ((n.to(tl.int32) + 126) << 23).to(tl.float32, bitcast=True)
        return tl.where(x == x, series * half_power * 2.0, x)


@triton.jit
def residual(reward, value, terminated, gamma, following):
    """r + gamma * following - V, of which a termination hides what follows."""
    immediate = reward - value
    return tl.where(terminated, immediate, immediate + gamma * following)


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    (
        reward, value, log_pi_target, log_pi_behavior, terminated, truncated, bootstrap, next_value, gamma, lambda_,
        _, _, _,
    ) = step  # fmt: skip
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    following = continuation(neighbour[1], truncated, at_open_end, bootstrap, next_value, row_values[0])
    ratio = exp(log_pi_target - log_pi_behavior)
    delta = clipped(ratio, numbers[2]) * residual(reward, value, terminated, gamma, following)
    return delta, gamma * lambda_ * clipped(ratio, numbers[3]), ended(terminated, truncated)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    (
        reward, value, log_pi_target, log_pi_behavior, terminated, truncated, bootstrap, next_value, gamma, lambda_,
        _, _, _,
    ) = step  # fmt: skip
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    following = continuation(neighbour[1], truncated, at_open_end, bootstrap, next_value, row_values[0])
    next_target = neighbour[1] + neighbour_state[0]
    mixed = (1.0 - lambda_) * following + lambda_ * next_target
    q = tl.where(ended(terminated, truncated) | at_open_end, following, mixed)
    ratio = clipped(exp(log_pi_target - log_pi_behavior), numbers[4])
    return value + state[0], ratio * residual(reward, value, terminated, gamma, q)
