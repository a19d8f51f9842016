"""compute_discounted_returns: discounted returns, bootstrapped where an episode goes on outside the window."""

from __future__ import annotations

from rl_triton_core.boundaries import FlagConventions, flags_behind, warn_of_truncations, warn_of_values
from rl_triton_core.engine.algorithm import FRACTION, MASK, Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.arguments import check_exclusive
from rl_triton_core.engine.dispatch import run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from torch import Tensor

from rl_triton_returns import _torch


def _load_tile() -> Tile:
    from rl_triton_returns import _tile

    return Tile(_tile.coefficients, _tile.emit)


def _uniform_decay(numbers: Numbers) -> float:
    return numbers[0]


_DISCOUNTED_RETURNS = FlagConventions.of(
    Algorithm(
        name="compute_discounted_returns",
        reverse=True,
        fields=(
            Field("rewards", required=True),
            Field("terminateds", flag=True, required=True),
            Field("truncateds", flag=True),
            Field("bootstrap_values"),
            Field("gamma", required=True, numbers=FRACTION),
            MASK,
        ),
        row_fields=(Field("last_value"),),
        outputs=1,
        load_tile=_load_tile,
        coefficients=_torch.coefficients,
        emit=_torch.emit,
        ahead=(),
        uniform_decay=_uniform_decay,
    )
)


def compute_discounted_returns(
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    bootstrap_values: Tensor | None = None,
    *,
    last_value: Tensor | None = None,
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Compute discounted returns, the reward-to-go.

        G[t] = rewards[t] + gamma * G[t+1]                      inside an episode
        G[t] = rewards[t] + gamma * continuation[t]             where it is truncated, and in the last column
        G[t] = rewards[t]                                       where it terminated

    The continuation is V(s_{t+1}): `bootstrap_values[t]`, in the last column also `last_value`, and 0 where neither is
    given. What a boundary hides is never read: NaN behind it stays there.

    Args:
        rewards: r[t] for the step from s_t to s_{t+1}, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides are honoured as they are: transposed, sliced and expanded views are read in place.
        terminateds: non-zero at the step after which an episode truly ended, same shape, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, same shape, any dtype. A step
            with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        bootstrap_values: V of the final observation at truncated steps, V(s_T) in the last column, same shape as
            rewards. Other entries are ignored.
        last_value: V(s_T) per row, the shape of rewards without its time axis. Where the last step is truncated this
            must be V of its final observation, not of the observation after the reset.
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
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        The returns, shaped and laid out in memory like rewards, in the promoted dtype of all real inputs.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma: no number), or of a complex or float8 dtype.
        ValueError: shapes that differ, a number outside [0, 1], both bootstrap_values and last_value, or a time axis
            that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Warns:
        UserWarning: truncateds without bootstrap_values: truncated steps then continue with 0.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop.
    Results are bitwise the same from run to run on one device. Differentiable in every real input.

    Source: Sutton and Barto, "Reinforcement Learning: An Introduction", second edition, 2018, equation 3.9.

    Example:
        >>> import torch
        >>> from rl_triton_returns import compute_discounted_returns
        >>> rewards = torch.tensor([[1.0, 2.0, 3.0]])
        >>> terminateds = torch.tensor([[False, False, False]])
        >>> compute_discounted_returns(rewards, terminateds, gamma=0.5, last_value=torch.tensor([4.0]))
        tensor([[3.2500, 4.5000, 5.0000]])
    """
    if bootstrap_values is not None:
        check_exclusive(bootstrap_values=bootstrap_values, last_value=last_value)
    fields = (rewards, terminateds, truncateds, bootstrap_values, gamma, mask)
    algorithm, row_values = _DISCOUNTED_RETURNS.ends_at, (last_value,)
    if boundary != "ends_at" or next_start is not None:
        algorithm, row_values = (
            _DISCOUNTED_RETURNS.starts_at,
            (*row_values, *flags_behind(boundary, next_start, truncateds)),
        )
    returns = run(algorithm, fields, row_values, time_dim, out, cu_seqlens)[0]
    if truncateds is not None:
        warn_of_truncations(truncateds, bootstrap_values, takes_next_values=False)
    if CORRECTNESS_WARNINGS:
        warn_of_values(
            rewards,
            terminateds,
            truncateds,
            time_dim % rewards.dim(),
            continuation_given=not (bootstrap_values is None and last_value is None),
            bootstrap_values=bootstrap_values,
            mask=mask,
            boundary=boundary,
            next_start=next_start,
            cu_seqlens=cu_seqlens,
            inputs={
                "rewards": rewards,
                "bootstrap_values": bootstrap_values,
                "last_value": last_value,
                "gamma": gamma,
            },
        )
    return returns
