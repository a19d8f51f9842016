"""compute_vtrace: V-trace value targets and policy-gradient advantages."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import Any

from rl_triton_core.boundaries import (
    FlagConventions,
    check_continuation,
    flags_behind,
    warn_of_truncations,
    warn_of_values,
)
from rl_triton_core.engine.algorithm import CLIP, FRACTION, MASK, Algorithm, Field, Tile
from rl_triton_core.engine.dispatch import run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from torch import Tensor

from rl_triton_vtrace import _torch


def _load_tile() -> Tile:
    from rl_triton_vtrace import _tile

    return Tile(_tile.coefficients, _tile.emit)


_ALGORITHM = Algorithm(
    name="compute_vtrace",
    reverse=True,
    # The first field leads: shapes, the time axis and the layout of the outputs are those of rewards.
    fields=(
        Field("rewards", required=True),
        Field("values", required=True),
        Field("log_pi_target", required=True),
        Field("log_pi_behavior", required=True),
        Field("terminateds", flag=True, required=True),
        Field("truncateds", flag=True),
        Field("bootstrap_values"),
        Field("next_values"),
        Field("gamma", required=True, numbers=FRACTION),
        Field("lambda_", required=True, numbers=FRACTION),
        Field("rho_bar", required=True, numbers=CLIP, per_step=False),
        Field("c_bar", required=True, numbers=CLIP, per_step=False),
        Field("pg_rho_bar", required=True, numbers=CLIP, per_step=False),
        MASK,
    ),
    row_fields=(Field("last_value"),),
    outputs=2,
    load_tile=_load_tile,
    coefficients=_torch.coefficients,
    emit=_torch.emit,
    differentiable=False,
)
_VTRACE = FlagConventions.of(_ALGORITHM)


def _load_leaky_tile() -> Tile:
    from rl_triton_vtrace import _tile

    return Tile(_tile.leaky_coefficients, _tile.leaky_emit)


# An algorithm of its own, so that what does not leak pays nothing for it.
_LEAKY_VTRACE = FlagConventions.of(
    replace(
        _ALGORITHM,
        name="compute_vtrace, leaky",
        fields=(*_ALGORITHM.step_fields, Field("leak", required=True, numbers=FRACTION, per_step=False), MASK),
        load_tile=_load_leaky_tile,
    )
)


def _is_zero(leak: Any) -> bool:
    """Whether it is the number 0 of any type; what is no number, the engine says."""
    return isinstance(leak, Real) and leak == 0


def compute_vtrace(
    log_pi_target: Tensor,
    log_pi_behavior: Tensor,
    values: Tensor,
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    rho_bar: float | None = 1.0,
    c_bar: float | None = 1.0,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    lambda_: float | Tensor = 1.0,
    pg_rho_bar: float | None = None,
    leak: float = 0.0,
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute V-trace value targets and policy-gradient advantages from off-policy data.

        ratio[t]      = exp(log_pi_target[t] - log_pi_behavior[t])
        delta[t]      = min(rho_bar, ratio[t]) * (rewards[t] + gamma * continuation[t] - values[t])
        D[t]          = delta[t] + gamma * lambda_ * min(c_bar, ratio[t]) * D[t+1]   cut after an ended step; D[T] = 0
        targets[t]    = values[t] + D[t]
        advantages[t] = min(pg_rho_bar, ratio[t]) * (rewards[t] + gamma * q[t] - values[t])
        q[t]          = (1 - lambda_) * continuation[t] + lambda_ * targets[t+1]     inside an episode;
                        continuation[t] after an ended step and in the last column

    With a `leak`, leak * ratio[t] + (1 - leak) * min(bound, ratio[t]) takes the place of each of the three minima.

    The continuation is V(s_{t+1}): `values[t+1]` inside an episode, 0 after a termination, and `bootstrap_values[t]`
    after a truncation and in the last column (there also `last_value`). `next_values`, where given, serves every step
    that did not terminate. What a boundary hides is never read, neither by the targets nor by the advantages: NaN
    behind it stays there.

    Args:
        log_pi_target: log pi(a_t|s_t) under the policy that is learned, for the actions that were taken, same shape as
            rewards. -inf is the logarithm of a probability of 0.
        log_pi_behavior: log mu(a_t|s_t) under the policy that took the actions, same shape.
        values: V(s_t), same shape.
        rewards: r[t] for the step from s_t to s_{t+1}, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides are honoured as they are: transposed, sliced and expanded views are read in place.
        terminateds: non-zero at the step after which an episode truly ended, same shape, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, same shape, any dtype. A step
            with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        rho_bar: positive clip of the ratio that weighs delta; the larger, the closer the targets' fixed point is to the
            value of the target policy. None or `math.inf` for no clip.
        c_bar: positive clip of the ratio that D is carried back with; the smaller, the less variance. The paper wants
            c_bar <= rho_bar. None or `math.inf` for no clip.
        bootstrap_values: V of the final observation at truncated steps, V(s_T) in the last column, same shape as
            rewards. Other entries are ignored.
        last_value: V(s_T) per row, the shape of rewards without its time axis. Where the last step is truncated this
            must be V of its final observation, not of the observation after the reset.
        next_values: V(s_{t+1}) for every step, same shape as rewards.
        lambda_: mixing weight in [0, 1], one number or one per step.
        pg_rho_bar: positive clip of the ratio that weighs the advantages; None for rho_bar, `math.inf` for no clip.
        leak: what a ratio counts for above its clips, a number in [0, 1]: 0 for V-trace, 1 for importance sampling as
            without any clip; in between, less is contracted away at the price of more variance.
        mask: zero at steps that are to be passed over, such as tool or observation tokens, same shape, any dtype; None:
            there are none. Nothing of such a step is read but its flags, its output is 0, and what follows it is what
            follows the step before, undecayed. A flag there ends the valid step before it, with the continuation of
            the step that has the flag; what the last column continues with passes to the last valid step.
        boundary: where a flag stands. "ends_at": at the step that ended an episode. "starts_at": at the first step of
            the next episode, so that a flag at t says that step t-1 ended; flags at t = 0 are ignored, and every other
            argument stays where it is.
        next_start: the flags of step T under "starts_at", which end step T-1: the shape of rewards without its time
            axis, any dtype; a pair, for terminateds and for truncateds, where truncateds are given. None: not ended.
        cu_seqlens: where each of the sequences begins that are packed one after the other along axis 0, of any length,
            and where the last one ends: `(num_sequences + 1,)`, int32 or int64, never decreasing, on the device of
            rewards, where alone it is read. A sequence is then what a row is otherwise, and `last_value` is
            `(num_sequences, *)` for rewards of `(total_steps, *)`. Steps that belong to no sequence give 0. It goes
            with `time_dim=0` and `boundary="ends_at"`.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: buffers for the two results, of their shape, dtype and device, which share no memory with an argument.

    Returns:
        The targets for the value function and the advantages for the policy gradient, both shaped and laid out in
        memory like rewards, in the promoted dtype of all real inputs. No gradient is recorded through either.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma and lambda_: no number; a clip that is no number), or
            of a complex or float8 dtype.
        ValueError: shapes that differ, a number outside its range, more than one of bootstrap_values, last_value and
            next_values, or a time axis that is not there.
        RuntimeError: tensors on different devices.

    Warns:
        UserWarning: truncateds without bootstrap_values or next_values: truncated steps then continue with 0.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop.
    Results are bitwise the same from run to run on one device. A ratio is clipped before it multiplies anything, so one
    that overflows is the clip, unless it leaks; one that is NaN (of two log probabilities of -inf) stays NaN inside its
    episode.

    Source: Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
    Architectures", 2018, equation 1, remark 2 (lambda) and section 4.2 (advantages). The leak: Zahavy et al., "A
    Self-Tuning Actor-Critic Algorithm", 2020, leaky V-trace, with an alpha of 1 - leak for both rho and c.

    Example:
        >>> import torch
        >>> from rl_triton_vtrace import compute_vtrace
        >>> ratios = torch.tensor([[0.5, 2.0, 1.0]])
        >>> rewards = torch.tensor([[1.0, 2.0, 3.0]])
        >>> values = torch.tensor([[0.5, 0.5, 0.5]])
        >>> terminateds = torch.tensor([[False, False, True]])
        >>> targets, advantages = compute_vtrace(
        ...     ratios.log(), torch.zeros(1, 3), values, rewards, terminateds, gamma=0.5
        ... )
        >>> targets
        tensor([[1.6250, 3.5000, 3.0000]])
        >>> advantages
        tensor([[1.1250, 3.0000, 2.5000]])
    """
    check_continuation(bootstrap_values, last_value, next_values)
    rho_bar = math.inf if rho_bar is None else rho_bar
    c_bar = math.inf if c_bar is None else c_bar
    pg_rho_bar = rho_bar if pg_rho_bar is None else pg_rho_bar
    fields: tuple[Any, ...] = (
        *(rewards, values, log_pi_target, log_pi_behavior, terminateds, truncateds, bootstrap_values, next_values),
        *(gamma, lambda_, rho_bar, c_bar, pg_rho_bar, mask),
    )
    conventions = _VTRACE
    if not ((leak.__class__ is float and leak == 0.0) or _is_zero(leak)):
        conventions, fields = _LEAKY_VTRACE, (*fields[:-1], leak, mask)
    algorithm, row_values = conventions.ends_at, (last_value,)
    if boundary != "ends_at" or next_start is not None:
        algorithm, row_values = conventions.starts_at, (*row_values, *flags_behind(boundary, next_start, truncateds))
    targets, advantages = run(algorithm, fields, row_values, time_dim, out, cu_seqlens)
    if truncateds is not None:
        warn_of_truncations(truncateds, bootstrap_values, next_values)
    if CORRECTNESS_WARNINGS:
        warn_of_values(
            rewards,
            terminateds,
            truncateds,
            time_dim % rewards.dim(),
            continuation_given=not (bootstrap_values is None and last_value is None and next_values is None),
            bootstrap_values=bootstrap_values,
            mask=mask,
            boundary=boundary,
            next_start=next_start,
            cu_seqlens=cu_seqlens,
            inputs={
                "log_pi_target": log_pi_target,
                "log_pi_behavior": log_pi_behavior,
                "values": values,
                "rewards": rewards,
                "bootstrap_values": bootstrap_values,
                "last_value": last_value,
                "next_values": next_values,
                "gamma": gamma,
                "lambda_": lambda_,
            },
        )
    return targets, advantages
