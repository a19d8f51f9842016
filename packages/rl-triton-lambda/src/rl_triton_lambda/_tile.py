"""The lambda-return on a GPU tile: the map of a step, and what it emits."""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import ended, interrupted


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    reward, next_value, terminated, truncated, bootstrap, gamma, lambda_ = step
    outside = interrupted(truncated, at_open_end)
    uniform: tl.constexpr = gamma is None and lambda_ is None
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    if uniform:
        one_step_weight, decay = numbers[2], numbers[3]
    else:
        # Rounded to float32, a decay that hardly varies would be wrong by the same amount at every step of an episode.
        decay = gamma.to(tl.float64) * lambda_
        one_step_weight = (gamma - decay).to(reward.dtype)
    one_step_weight = tl.where(outside, gamma, one_step_weight)
    continuation = next_value
    if bootstrap is not None:
        continuation = tl.where(outside, bootstrap, next_value)
    u = tl.where(terminated, reward, reward + one_step_weight * continuation)
    return u, decay, ended(terminated, truncated)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    return (state[0],)
