"""Retrace on whole tensors: the coefficients of its recursion, its targets and advantages.

    u     = rewards - q_values + gamma * expected
    decay = gamma * lambda_ * min(c_bar, ratio of the next step), cut after an ended step

Where a step has ended, and in the last column, nothing follows it: the residual r + gamma * q - Q is u itself.

The form for continuous actions is told `expected`, and its traces differ: see `ratio_coefficients` and those after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from rl_triton_core.boundaries import Part, add_discounted, columns, episode_ends, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from rl_triton_core.engine.modes import is_watched, numbers_can_be_read
from rl_triton_core.policies import clipped
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """u, decay and cut of D[t] = u[t] + decay[t] * D[t+1]."""
    rewards, policy, next_q, next_policy, q_values, behavior, actions, terminateds, truncateds, _, gamma, lambda_ = (
        fields[:12]
    )
    (last_policy,) = row_values
    assert rewards is not None and policy is not None and next_q is not None and behavior is not None
    assert q_values is not None and actions is not None and terminateds is not None
    parts = (
        (part, unless(part(terminateds), _expectation(policy_there, part(next_q))))
        for part, policy_there in _next_policies(policy, truncateds, next_policy, last_policy, dim)
    )
    u = add_discounted(rewards - q_values, parts, terminateds, gamma, numbers[0])
    trace = clipped(_ratio(policy, behavior, actions), numbers[2]).roll(-1, dim)
    decay = (numbers[0] if gamma is None else gamma) * (numbers[1] if lambda_ is None else lambda_) * trace
    return u, decay, episode_ends(terminateds, truncateds)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The targets, and the advantages in the form that was asked for."""
    rewards, policy, _, _, q_values, behavior, actions, terminateds, truncateds, values, gamma = fields[:11]
    assert rewards is not None and policy is not None and behavior is not None
    assert q_values is not None and actions is not None and terminateds is not None
    rho = clipped(_ratio(policy, behavior, actions), numbers[3])
    ended = episode_ends(terminateds, truncateds)
    targets, advantages = _outputs(rewards, q_values, values, numbers[0] if gamma is None else gamma, ended, y, dim)
    return targets, rho * advantages


def ratio_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """With continuous actions: a trace of lambda * min(c_bar, ratio)."""
    return _continuous_coefficients(fields, numbers, clipped(_continuous_ratio(fields), numbers[2]), dim)


def lambda_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """With continuous actions: a trace of lambda alone."""
    return _continuous_coefficients(fields, numbers, None, dim)


def policy_coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """With continuous actions: a trace of lambda * pi."""
    log_pi_target = fields[2]
    assert log_pi_target is not None
    return _continuous_coefficients(fields, numbers, log_pi_target.exp(), dim)


def continuous_emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """With continuous actions: the targets and the advantages, these with a weight where the behavior is known."""
    rewards, q_values, _, log_pi_behavior, _, terminateds, truncateds, values, gamma = fields[:9]
    assert rewards is not None and q_values is not None and terminateds is not None
    ended = episode_ends(terminateds, truncateds)
    targets, advantages = _outputs(rewards, q_values, values, numbers[0] if gamma is None else gamma, ended, y, dim)
    if log_pi_behavior is None:
        return targets, advantages
    return targets, clipped(_continuous_ratio(fields), numbers[3]) * advantages


def _outputs(
    rewards: Tensor,
    q_values: Tensor,
    values: Tensor | None,
    gamma: Tensor | float,
    ended: Tensor,
    y: Tensor,
    dim: int,
) -> tuple[Tensor, Tensor]:
    """The targets, and the advantages without their weight."""
    targets = q_values + y
    if values is not None:
        return targets, targets - values
    inside, in_last_column, ahead = columns(y.shape[dim], dim)
    followed = inside(rewards - q_values) + (inside(gamma) if isinstance(gamma, Tensor) else gamma) * ahead(targets)
    residual = torch.where(inside(ended), inside(y), followed)
    return targets, torch.cat([residual, in_last_column(y).unsqueeze(dim)], dim)


def _continuous_coefficients(
    fields: OptionalTensors, numbers: Numbers, trace: Tensor | None, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """u, decay and cut for the traces of all steps, None for ones."""
    rewards, q_values, _, _, next_values, terminateds, truncateds, _, gamma, lambda_ = fields[:10]
    assert rewards is not None and q_values is not None and next_values is not None and terminateds is not None
    expected: list[tuple[Part, Tensor]] = [(lambda x: x, unless(terminateds, next_values))]
    u = add_discounted(rewards - q_values, expected, terminateds, gamma, numbers[0])
    decay = (numbers[0] if gamma is None else gamma) * (numbers[1] if lambda_ is None else lambda_)
    if trace is not None:
        decay = decay * trace.roll(-1, dim)
    return u, decay, episode_ends(terminateds, truncateds)


def _continuous_ratio(fields: OptionalTensors) -> Tensor:
    """exp(log_pi_target - log_pi_behavior)."""
    log_pi_target, log_pi_behavior = fields[2:4]
    assert log_pi_target is not None and log_pi_behavior is not None
    return (log_pi_target - log_pi_behavior).exp_()


def _next_policies(
    policy: Tensor, truncateds: Tensor | None, next_policy: Tensor | None, last_policy: Tensor | None, dim: int
) -> Iterator[tuple[Part, Tensor]]:
    """pi(.|s_{t+1}) after every step, in parts: a view onto the columns, and the policy there.

    A truncated step and the last column have that of s_t as a stand-in, unless they are told.
    """
    if next_policy is not None:
        yield lambda x: x, next_policy
        return
    inside, in_last_column, ahead = columns(policy.shape[dim], dim)
    following = ahead(policy)
    if truncateds is not None:
        following = torch.where(inside(truncateds).unsqueeze(-1), inside(policy), following)
    yield inside, following
    yield in_last_column, in_last_column(policy) if last_policy is None else last_policy


def _expectation(policy: Tensor, q: Tensor) -> Tensor:
    """The sum over actions of pi * Q, to which an action of probability 0 contributes 0 whatever its Q.

    Selecting takes as long as all the rest: as long as the sum is finite, there was nothing to select away.
    """
    weighted = policy * q
    expected = weighted.sum(-1)
    if numbers_can_be_read(expected) and not is_watched() and math.isfinite(expected.sum().item()):
        return expected
    return torch.where(policy == 0, 0.0, weighted).sum(-1)


def _ratio(policy: Tensor, behavior: Tensor, actions: Tensor) -> Tensor:
    """pi(a_t|s_t) / mu(a_t|s_t), NaN where there is no such action."""
    exists = (actions >= 0) & (actions < policy.shape[-1])
    index = torch.where(exists, actions, 0).unsqueeze(-1)
    return torch.where(exists, policy.gather(-1, index).squeeze(-1), math.nan) / behavior
