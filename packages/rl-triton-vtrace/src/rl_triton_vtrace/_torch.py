"""V-trace on whole tensors: the coefficients of its recursion, and its outputs.

    u     = min(rho_bar, ratio) * (rewards - values + gamma * continuation)
    decay = min(c_bar, ratio) * gamma * lambda_, cut after an ended step

Leaky V-trace has one number more, the last one, and weighs by `_leaky` in place of the minimum. The outputs are
targets, so no derivative is taken of these operations, and they work in place where they can.
"""

from __future__ import annotations

import torch
from rl_triton_core.boundaries import add_discounted, columns, continuations, episode_ends
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from rl_triton_core.policies import clipped, clips
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """u, decay and cut of D[t] = u[t] + decay[t] * D[t+1], where D = targets - values."""
    _, values, _, _, terminateds, truncateds, _, next_values, gamma, lambda_, *_ = fields
    assert values is not None and terminateds is not None
    _, _, rho_bar, c_bar, _, *leak = numbers
    ratio = _ratio(fields)
    rho = _leaky(ratio, rho_bar, *leak)
    u = _residual(fields, row_values, numbers, dim, values, next_values).mul_(rho)
    c = rho if c_bar == rho_bar else _leaky(ratio, c_bar, *leak)
    if gamma is None and lambda_ is None:
        c.mul_(numbers[0] * numbers[1])
    else:
        c = c * ((numbers[0] if gamma is None else gamma) * (numbers[1] if lambda_ is None else lambda_))
    return u, c, episode_ends(terminateds, truncateds)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """The targets, and the advantages in view of the next step's target."""
    _, values, _, _, terminateds, truncateds, _, next_values, _, lambda_, *_ = fields
    assert values is not None and terminateds is not None
    _, mixing, rho_bar, c_bar, pg_rho_bar, *leak = numbers
    targets = values + y
    if next_values is None and rho_bar == c_bar == pg_rho_bar and clips(pg_rho_bar, y.dtype) and not leak:
        # With one factor for all, and a finite one, the advantage is what the recursion adds up.
        return targets, y

    # q is a continuation again, with the next step's target mixed into what lies ahead inside an episode.
    ahead, next_q = values, None
    if next_values is not None:
        ended = episode_ends(terminateds, truncateds)
        next_q = _mixed(next_values, targets, ended, mixing if lambda_ is None else lambda_, dim)
    elif lambda_ is None:
        ahead = torch.add(values, y, alpha=mixing)
    else:
        # A lambda belongs to the step before the one that it mixes.
        ahead = values + lambda_.roll(1, dim) * y
    advantages = _residual(fields, row_values, numbers, dim, ahead, next_q)
    return targets, advantages.mul_(_leaky(_ratio(fields), pg_rho_bar, *leak))


def _ratio(fields: OptionalTensors) -> Tensor:
    """exp(log_pi_target - log_pi_behavior)."""
    _, _, log_pi_target, log_pi_behavior, *_ = fields
    assert log_pi_target is not None and log_pi_behavior is not None
    return (log_pi_target - log_pi_behavior).exp_()


def _leaky(ratio: Tensor, bound: float, leak: float = 0.0) -> Tensor:
    """leak * ratio + (1 - leak) * min(bound, ratio): what lies above the bound counts with a weight of leak."""
    if leak == 0 or not clips(bound, ratio.dtype):
        return clipped(ratio, bound)
    return torch.where(ratio > bound, bound + leak * (ratio - bound), ratio)


def _residual(
    fields: OptionalTensors,
    row_values: OptionalTensors,
    numbers: Numbers,
    dim: int,
    ahead: Tensor,
    next_values: Tensor | None,
) -> Tensor:
    """rewards + gamma * continuation - values, where `ahead` holds what a step finds one step ahead of it."""
    rewards, values, _, _, terminateds, truncateds, bootstrap_values, _, gamma, *_ = fields
    (last_value,) = row_values
    assert rewards is not None and values is not None and terminateds is not None
    parts = continuations(ahead, terminateds, truncateds, bootstrap_values, last_value, next_values, dim)
    return add_discounted(rewards - values, parts, terminateds, gamma, numbers[0])


def _mixed(next_values: Tensor, targets: Tensor, ended: Tensor, mixing: Tensor | float, dim: int) -> Tensor:
    """(1 - lambda_) * next_values[t] + lambda_ * targets[t+1] inside an episode, else next_values[t]."""
    inside, in_last_column, ahead = columns(targets.shape[dim], dim)
    if isinstance(mixing, Tensor):
        mixing = inside(mixing)
    mixed = (1 - mixing) * inside(next_values) + mixing * ahead(targets)
    mixed = torch.where(inside(ended), inside(next_values), mixed)
    return torch.cat([mixed, in_last_column(next_values).unsqueeze(dim)], dim)
