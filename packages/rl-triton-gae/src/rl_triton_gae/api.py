"""compute_gae: Generalised Advantage Estimation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, overload

from rl_triton_core.boundaries import (
    FlagConventions,
    check_continuation,
    flags_behind,
    warn_of_truncations,
    warn_of_values,
)
from rl_triton_core.engine.algorithm import FRACTION, MASK, Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.dispatch import run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from rl_triton_core.engine.sharding import check_not_time_sharded
from rl_triton_core.masks import inside_sequences
from torch import Tensor

from rl_triton_gae import _torch
from rl_triton_gae.normalization import normalize_advantages


def _load_tile() -> Tile:
    from rl_triton_gae import _tile

    return Tile(_tile.coefficients, _tile.emit)


def _load_tile_with_targets() -> Tile:
    from rl_triton_gae import _tile

    return Tile(_tile.coefficients, _tile.emit_with_targets)


def _load_tile_with_targets_lambda() -> Tile:
    from rl_triton_gae import _tile

    return Tile(_tile.coefficients_with_targets_lambda, _tile.emit_with_targets_lambda)


def _uniform_decays(numbers: Numbers) -> tuple[float, float]:
    gamma, lambda_, targets_lambda = numbers
    return gamma * lambda_, gamma * targets_lambda


def _uniform_decay(numbers: Numbers) -> float:
    gamma, lambda_ = numbers
    return gamma * lambda_


_ALGORITHM = Algorithm(
    name="compute_gae",
    reverse=True,
    fields=(
        Field("rewards", required=True),
        Field("values", required=True),
        Field("terminateds", flag=True, required=True),
        Field("truncateds", flag=True),
        Field("bootstrap_values"),
        Field("next_values"),
        Field("gamma", required=True, numbers=FRACTION),
        Field("lambda_", required=True, numbers=FRACTION),
        MASK,
    ),
    row_fields=(Field("last_value"),),
    outputs=1,
    load_tile=_load_tile,
    coefficients=_torch.coefficients,
    emit=_torch.emit,
    ahead=("values",),
    uniform_decay=_uniform_decay,
)
_GAE = FlagConventions.of(_ALGORITHM)
_WITH_TARGETS = replace(
    _ALGORITHM,
    name="compute_gae, return_targets",
    outputs=2,
    load_tile=_load_tile_with_targets,
    emit=_torch.emit_with_targets,
)
_GAE_WITH_TARGETS = FlagConventions.of(_WITH_TARGETS)
_GAE_WITH_TARGETS_LAMBDA = FlagConventions.of(
    replace(
        _WITH_TARGETS,
        name="compute_gae, targets_lambda",
        fields=(*_ALGORITHM.step_fields, Field("targets_lambda", required=True, numbers=FRACTION), MASK),
        recursions=2,
        load_tile=_load_tile_with_targets_lambda,
        coefficients=_torch.coefficients_with_targets_lambda,
        emit=_torch.emit_with_targets_lambda,
        uniform_decay=_uniform_decays,
    )
)


@overload
def compute_gae(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    lambda_: float | Tensor = 0.95,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    return_targets: Literal[False] = False,
    targets_lambda: None = None,
    normalize: bool = False,
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor: ...


@overload
def compute_gae(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    lambda_: float | Tensor = 0.95,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    return_targets: Literal[True],
    targets_lambda: float | Tensor | None = None,
    normalize: bool = False,
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]: ...


def compute_gae(
    rewards: Tensor,
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    lambda_: float | Tensor = 0.95,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    return_targets: bool = False,
    targets_lambda: float | Tensor | None = None,
    normalize: bool = False,
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute advantages by Generalised Advantage Estimation.

        delta[t] = rewards[t] + gamma * continuation[t] - values[t]
        A[t]     = delta[t] + gamma * lambda_ * A[t+1]           cut after an ended step; A[T] = 0

    The continuation is V(s_{t+1}): `values[t+1]` inside an episode, 0 after a termination, and `bootstrap_values[t]`
    after a truncation and in the last column (there also `last_value`). `next_values`, where given, serves every step
    that did not terminate. What a boundary hides is never read: NaN behind it stays there.

    Args:
        rewards: r[t] for the step from s_t to s_{t+1}, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides are honoured as they are: transposed, sliced and expanded views are read in place.
        values: V(s_t), same shape.
        terminateds: non-zero at the step after which an episode truly ended, same shape, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, same shape, any dtype. A step
            with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        lambda_: mixing weight in [0, 1], one number or one per step.
        bootstrap_values: V of the final observation at truncated steps, V(s_T) in the last column, same shape as
            rewards. Other entries are ignored.
        last_value: V(s_T) per row, the shape of rewards without its time axis. Where the last step is truncated this
            must be V of its final observation, not of the observation after the reset.
        next_values: V(s_{t+1}) for every step, same shape as rewards.
        return_targets: also return the targets of the value function, advantages + values: one more store of the same
            pass.
        targets_lambda: mixing weight of the targets in [0, 1], one number or one per step, where it is not lambda_:
            targets are then values + the advantages that this weight gives, in the same pass.
        normalize: give the advantages mean 0 and standard deviation 1, as `normalize_advantages` does by default, over
            the steps of this process that the mask holds, and a sequence of `cu_seqlens`. Targets are made of the
            advantages before that.
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
        out: a buffer for the result (with `return_targets` a pair), of its shape, dtype and device. It shares no memory
            with an argument, and no gradient can be recorded through it.

    Returns:
        The advantages, or advantages and targets, shaped and laid out in memory like rewards, in the promoted dtype of
        all real inputs.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma and lambda_: no number), or of a complex or float8
            dtype.
        ValueError: shapes that differ, a number outside [0, 1], targets_lambda without return_targets, more than one of
            bootstrap_values, last_value and next_values, or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Warns:
        UserWarning: truncateds without bootstrap_values or next_values: truncated steps then continue with 0.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop.
    Results are bitwise the same from run to run on one device. Differentiable in every real input.

    Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation", 2015,
    equation 16.

    Example:
        >>> import torch
        >>> from rl_triton_gae import compute_gae
        >>> rewards = torch.tensor([[1.0, 2.0, 3.0]])
        >>> values = torch.tensor([[0.5, 0.5, 0.5]])
        >>> terminateds = torch.tensor([[False, False, False]])
        >>> compute_gae(rewards, values, terminateds, gamma=0.5, lambda_=1.0, last_value=torch.tensor([0.7]))
        tensor([[2.3375, 3.1750, 2.8500]])
    """
    check_continuation(bootstrap_values, last_value, next_values)
    fields: tuple[Any, ...]
    fields = (rewards, values, terminateds, truncateds, bootstrap_values, next_values, gamma, lambda_, mask)
    conventions = _GAE_WITH_TARGETS if return_targets else _GAE
    if targets_lambda is not None:
        if not return_targets:
            raise ValueError("targets_lambda: expected None without return_targets=True, where there are no targets")
        conventions, fields = _GAE_WITH_TARGETS_LAMBDA, (*fields[:-1], targets_lambda, mask)
    algorithm, row_values = conventions.ends_at, (last_value,)
    if boundary != "ends_at" or next_start is not None:
        algorithm, row_values = conventions.starts_at, (*row_values, *flags_behind(boundary, next_start, truncateds))
    outputs = run(algorithm, fields, row_values, time_dim, out, cu_seqlens)
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
                "rewards": rewards,
                "values": values,
                "bootstrap_values": bootstrap_values,
                "last_value": last_value,
                "next_values": next_values,
                "gamma": gamma,
                "lambda_": lambda_,
                "targets_lambda": targets_lambda,
            },
        )
    advantages = outputs[0]
    if normalize:
        # Statistics of a shard would pass for those of the sequence.
        check_not_time_sharded("compute_gae, normalize")
        valid = mask if cu_seqlens is None else inside_sequences(cu_seqlens, advantages, mask)
        normalized = normalize_advantages(advantages, valid)
        advantages = normalized if out is None else advantages.copy_(normalized)
    return (advantages, outputs[1]) if return_targets else advantages
