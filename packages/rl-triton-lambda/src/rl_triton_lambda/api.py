"""compute_lambda_returns: lambda-returns of state values."""

from __future__ import annotations

from rl_triton_core.boundaries import FlagConventions, flags_behind, warn_of_values
from rl_triton_core.engine.algorithm import FRACTION, MASK, Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.dispatch import run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from torch import Tensor

from rl_triton_lambda import _torch


def _load_tile() -> Tile:
    from rl_triton_lambda import _tile

    return Tile(_tile.coefficients, _tile.emit)


def _uniform_decay(numbers: Numbers) -> float:
    gamma, lambda_ = numbers
    return gamma * lambda_


def _derived_numbers(numbers: Numbers) -> Numbers:
    """What the next value weighs, and the next return: gamma together, so neither is made of rounded numbers."""
    gamma, lambda_ = numbers
    return gamma * (1.0 - lambda_), gamma * lambda_


_LAMBDA_RETURNS = FlagConventions.of(
    Algorithm(
        name="compute_lambda_returns",
        reverse=True,
        fields=(
            Field("rewards", required=True),
            Field("next_values", required=True),
            Field("terminateds", flag=True, required=True),
            Field("truncateds", flag=True),
            Field("bootstrap_values"),
            Field("gamma", required=True, numbers=FRACTION),
            Field("lambda_", required=True, numbers=FRACTION),
            MASK,
        ),
        row_fields=(),
        outputs=1,
        load_tile=_load_tile,
        coefficients=_torch.coefficients,
        emit=_torch.emit,
        ahead=(),
        uniform_decay=_uniform_decay,
        derived_numbers=_derived_numbers,
    )
)


def compute_lambda_returns(
    rewards: Tensor,
    next_values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    lambda_: float | Tensor = 0.95,
    bootstrap_values: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Compute lambda-returns, the targets of TD(lambda).

        G[t] = rewards[t] + gamma * ((1 - lambda_) * next_values[t] + lambda_ * G[t+1])     inside an episode
        G[t] = rewards[t] + gamma * continuation[t]                     where it is truncated, and in the last column
        G[t] = rewards[t]                                               where it terminated

    The continuation is V(s_{t+1}) with its whole weight: `bootstrap_values[t]` if they are given, zeros included, else
    `next_values[t]`. What a boundary hides is never read: NaN behind it stays there.

    Args:
        rewards: r[t] for the step from s_t to s_{t+1}, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides are honoured as they are: transposed, sliced and expanded views are read in place.
        next_values: V(s_{t+1}) for every step, same shape as rewards: of the final observation, not of the one after
            the reset, where a step is truncated. Not read where a step terminated.
        terminateds: non-zero at the step after which an episode truly ended, same shape, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, same shape, any dtype. A step
            with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        lambda_: mixing weight in [0, 1], one number or one per step, likewise of the transition t to t+1.
        bootstrap_values: V of the final observation at truncated steps, V(s_T) in the last column, same shape as
            rewards; there they take the place of next_values. Other entries are ignored.
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
            rewards, where alone it is read. A sequence is then what a row is otherwise. Steps that belong to no
            sequence give 0. It goes with `time_dim=0` and `boundary="ends_at"`.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        The returns, shaped and laid out in memory like rewards, in the promoted dtype of all real inputs.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma and lambda_: no number), or of a complex or float8
            dtype.
        ValueError: shapes that differ, a number outside [0, 1], or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop.
    Results are bitwise the same from run to run on one device. Differentiable in every real input.

    Source: Sutton and Barto, "Reinforcement Learning: An Introduction", second edition, 2018, equation 12.18.

    Example:
        >>> import torch
        >>> from rl_triton_lambda import compute_lambda_returns
        >>> rewards = torch.tensor([[1.0, 2.0, 3.0]])
        >>> next_values = torch.tensor([[4.0, 2.0, 5.0]])
        >>> terminateds = torch.tensor([[False, False, False]])
        >>> compute_lambda_returns(rewards, next_values, terminateds, gamma=0.5, lambda_=0.5)
        tensor([[2.9688, 3.8750, 5.5000]])
    """
    fields = (rewards, next_values, terminateds, truncateds, bootstrap_values, gamma, lambda_, mask)
    algorithm, row_values = _LAMBDA_RETURNS.ends_at, ()
    if boundary != "ends_at" or next_start is not None:
        algorithm, row_values = _LAMBDA_RETURNS.starts_at, flags_behind(boundary, next_start, truncateds)
    returns = run(algorithm, fields, row_values, time_dim, out, cu_seqlens)[0]
    if CORRECTNESS_WARNINGS:
        warn_of_values(
            rewards,
            terminateds,
            truncateds,
            time_dim % rewards.dim(),
            continuation_given=True,
            bootstrap_values=bootstrap_values,
            mask=mask,
            boundary=boundary,
            next_start=next_start,
            cu_seqlens=cu_seqlens,
            inputs={
                "rewards": rewards,
                "next_values": next_values,
                "bootstrap_values": bootstrap_values,
                "gamma": gamma,
                "lambda_": lambda_,
            },
        )
    return returns
