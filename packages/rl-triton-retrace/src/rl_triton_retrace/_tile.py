"""Retrace on a GPU tile: what it derives from the actions of a step, the map of the step, and what it emits.

The form for continuous actions derives nothing: it is told the expectation. Its traces differ in their maps alone.
"""

import triton
import triton.language as tl
from rl_triton_core._boundaries_tile import ended, residual
from rl_triton_core._policies_tile import clipped, exp
from rl_triton_core.engine import tiles

FETCHED_BLOCK = tl.constexpr(tiles.FETCHED_BLOCK)


@triton.jit
def add_block(
    total,
    policy,
    policy_stride,
    last_policy,
    last_policy_stride,
    at_open_end,
    q,
    q_stride,
    mask,
    actions,
    n_actions,
    EVEN: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Add a block of pi * Q to [..., BLOCK]. An action of probability 0 contributes 0 whatever its Q."""
    mask = tl.expand_dims(mask, -1)
    if not EVEN:
        mask = mask & (actions < n_actions)
    value = tl.load(tl.expand_dims(q, -1) + actions * q_stride, mask, other=0).to(NUMBER)
    if last_policy is not None:
        at_open_end = tl.expand_dims(at_open_end, -1)
        inside = tl.load(tl.expand_dims(policy, -1) + actions * policy_stride, mask & ~at_open_end, other=0)
        last = tl.load(tl.expand_dims(last_policy, -1) + actions * last_policy_stride, mask & at_open_end, other=0)
        probability = tl.where(at_open_end, last.to(NUMBER), inside.to(NUMBER))
    else:
        probability = tl.load(tl.expand_dims(policy, -1) + actions * policy_stride, mask, other=0).to(NUMBER)
    return tl.where(probability == 0, total, total + probability * value)


@triton.jit
def derive(
    step,
    at_open_end,
    mask,
    wide,
    time_strides,
    action_strides,
    n_actions,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
    NUMBER: tl.constexpr,
    NEIGHBOUR: tl.constexpr,
):
    """E_pi Q(s_{t+1}, .), and pi(a_t|s_t)."""
    action, terminated, truncated = step[3], step[4], step[5]
    policy, next_q, next_policy, last_policy = wide
    exists = mask & (action >= 0) & (action < n_actions)
    chosen = tl.load(policy + tl.where(exists, action, 0) * action_strides[0], exists, other=0).to(NUMBER)
    chosen = tl.where(exists, chosen, float("nan"))
    if NEIGHBOUR:
        expected = tl.zeros_like(chosen)
    else:
        if next_policy is not None:
            source = next_policy
            source_stride = action_strides[2]
        else:
            # pi(.|s_{t+1}) is the next row of the same tensor; where an episode was cut off, this row stands in.
            stands_in = at_open_end
            if truncated is not None:
                stands_in = at_open_end | truncated
            # Choosing 0 or 1 keeps what the compiler knows the stride to be divisible by: loads stay whole vectors.
            source = policy + tl.where(stands_in, 0, 1) * time_strides[0]
            source_stride = action_strides[0]
        if last_policy is not None:
            last_stride = action_strides[3]
        else:
            last_stride = 1
        continues = mask & ~terminated
        actions = tl.arange(0, BLOCK).to(n_actions.dtype)
        total = tl.zeros_like(tl.expand_dims(chosen, -1) + actions)
        if ONE_BLOCK:
            total = add_block(
                total, source, source_stride, last_policy, last_stride, at_open_end, next_q, action_strides[1],
                continues, actions, n_actions, EVEN, NUMBER,
            )  # fmt: skip
        else:
            # Two blocks ahead take twice their memory, which float64 may not find.
            STAGES: tl.constexpr = 3 if BLOCK >= FETCHED_BLOCK and NUMBER == tl.float32 else 1
            for first in tl.range(0, n_actions, BLOCK, num_stages=STAGES):
                total = add_block(
                    total, source, source_stride, last_policy, last_stride, at_open_end, next_q, action_strides[1],
                    continues, first + actions, n_actions, EVEN, NUMBER,
                )  # fmt: skip
        expected = tl.sum(total, -1)
    return expected, chosen


@triton.jit
def outputs_of(reward, q_value, value, gamma, rho, is_last, state, next_q_value, next_state):
    """The target, and the advantage with its weight rho; None for a weight of 1."""
    target = q_value + state
    if value is not None:
        advantage = target - value
    else:
        # Nothing follows an ended step or the last column: the residual is the state itself.
        inside = reward - q_value + gamma * (next_q_value + next_state)
        advantage = tl.where(is_last, state, inside)
    if rho is not None:
        advantage = rho * advantage
    return target, advantage


@triton.jit
def coefficients(step, neighbour, at_open_end, row_values, numbers):
    reward, q_value, behavior, _, terminated, truncated, _, gamma, lambda_, _, _, expected, _ = step
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    delta = residual(reward, q_value, terminated, gamma, expected)
    trace = clipped(neighbour[12] / neighbour[2], numbers[2])
    return delta, gamma * lambda_ * trace, ended(terminated, truncated)


@triton.jit
def emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    reward, q_value, behavior, _, terminated, truncated, value, gamma, _, _, _, _, chosen = step
    if gamma is None:
        gamma = numbers[0]
    rho = clipped(chosen / behavior, numbers[3])
    is_last = ended(terminated, truncated) | at_open_end
    return outputs_of(reward, q_value, value, gamma, rho, is_last, state[0], neighbour[1], neighbour_state[0])


@triton.jit
def continuous_coefficients(step, trace, numbers):
    """The map of a step whose next one has this trace; None for a trace of lambda alone."""
    reward, q_value, _, _, expected, terminated, truncated, _, gamma, lambda_, _, _ = step
    if gamma is None:
        gamma = numbers[0]
    if lambda_ is None:
        lambda_ = numbers[1]
    delta = residual(reward, q_value, terminated, gamma, expected)
    decay = gamma * lambda_
    if trace is not None:
        decay = decay * trace
    return delta, decay, ended(terminated, truncated)


@triton.jit
def ratio_coefficients(step, neighbour, at_open_end, row_values, numbers):
    return continuous_coefficients(step, clipped(exp(neighbour[2] - neighbour[3]), numbers[2]), numbers)


@triton.jit
def lambda_coefficients(step, neighbour, at_open_end, row_values, numbers):
    return continuous_coefficients(step, None, numbers)


@triton.jit
def policy_coefficients(step, neighbour, at_open_end, row_values, numbers):
    return continuous_coefficients(step, exp(neighbour[2]), numbers)


@triton.jit
def continuous_emit(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):
    reward, q_value, log_pi_target, log_pi_behavior, _, terminated, truncated, value, gamma, _, _, _ = step
    if gamma is None:
        gamma = numbers[0]
    is_last = ended(terminated, truncated) | at_open_end
    if log_pi_behavior is not None:
        rho = clipped(exp(log_pi_target - log_pi_behavior), numbers[3])
        return outputs_of(reward, q_value, value, gamma, rho, is_last, state[0], neighbour[1], neighbour_state[0])
    else:
        return outputs_of(reward, q_value, value, gamma, None, is_last, state[0], neighbour[1], neighbour_state[0])
