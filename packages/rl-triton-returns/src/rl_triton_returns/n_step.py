"""compute_n_step_returns: returns of n rewards and the value of the state after them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rl_triton_core.boundaries import check_continuation, warn_of_truncations, warn_of_values
from rl_triton_core.engine.algorithm import FRACTION, Algorithm, Field, Tile
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.buffers import check_buffers
from rl_triton_core.engine.composite import emitted, problem_of
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from rl_triton_core.engine.layout import empty_output
from rl_triton_core.engine.sharding import check_not_time_sharded, is_sharded, run_on_shards
from torch import Tensor

from rl_triton_returns import _torch, _windows


def _load_tile() -> Tile:
    raise NotImplementedError("a window of n steps is no recursion: there is no tile")


# It describes the arguments, to those who check and convert them, and is never run as a scan.
_N_STEP_RETURNS = Algorithm(
    name="compute_n_step_returns",
    reverse=True,
    fields=(
        Field("rewards", required=True),
        Field("values"),
        Field("terminateds", flag=True, required=True),
        Field("truncateds", flag=True),
        Field("bootstrap_values"),
        Field("next_values"),
        Field("gamma", required=True, numbers=FRACTION),
    ),
    row_fields=(Field("last_value"),),
    outputs=1,
    load_tile=_load_tile,
    coefficients=_torch.coefficients,
    emit=_torch.emit,
)


def compute_n_step_returns(
    rewards: Tensor,
    values: Tensor | None,
    terminateds: Tensor,
    truncateds: Tensor | None = None,
    gamma: float | Tensor = 0.99,
    n: int = 5,
    bootstrap_values: Tensor | None = None,
    last_value: Tensor | None = None,
    *,
    next_values: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Compute n-step returns: the next n rewards, and the value of the state that follows them.

        G[t] = rewards[t] + gamma * rewards[t+1] + ... + gamma^(m-1) * rewards[t+m-1] + gamma^m * continuation[t+m-1]

    where m is n, or fewer steps where the episode ends before, or the window does. The continuation is V(s_{t+m}):
    `values[t+m]` inside an episode, 0 after a termination, and `bootstrap_values[t+m-1]` after a truncation and in the
    last column (there also `last_value`). `next_values`, where given, serves every step that did not terminate. What a
    boundary hides is never read: NaN behind it stays there, and so does one more than n steps ahead.

    Args:
        rewards: r[t] for the step from s_t to s_{t+1}, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides are honoured as they are: transposed, sliced and expanded views are read in place.
        values: V(s_t), same shape; the first n are never read. None where `next_values` is given, which then serves in
            their place.
        terminateds: non-zero at the step after which an episode truly ended, same shape, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, same shape, any dtype. A step
            with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        n: how many rewards a return has at most, a positive int. 1 makes targets of TD(0); T or more, discounted
            returns.
        bootstrap_values: V of the final observation at truncated steps, V(s_T) in the last column, same shape as
            rewards. Other entries are ignored.
        last_value: V(s_T) per row, the shape of rewards without its time axis. Where the last step is truncated this
            must be V of its final observation, not of the observation after the reset.
        next_values: V(s_{t+1}) for every step, same shape as rewards.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        The returns, shaped and laid out in memory like rewards, in the promoted dtype of all real inputs.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma: no number; for n: no int), or of a complex or float8
            dtype; neither values nor next_values.
        ValueError: shapes that differ, a number out of its range, more than one of bootstrap_values, last_value and
            next_values, or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.
        NotImplementedError: inside `time_sharded`: a window would need steps of another rank.

    Warns:
        UserWarning: truncateds without bootstrap_values or next_values: truncated steps then continue with 0.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop:
    sums of 1, 2, 4, ... steps are joined, and no two are subtracted. On a GPU too these are operations of PyTorch, a
    few for every binary digit of n, and no kernel of its own. Results are bitwise the same from run to run on one
    device.
    Differentiable in every real input.

    Source: Sutton and Barto, "Reinforcement Learning: An Introduction", second edition, 2018, equation 7.1. The default
    n is that of Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning", 2016.

    Example:
        >>> import torch
        >>> from rl_triton_returns import compute_n_step_returns
        >>> rewards = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> values = torch.tensor([[8.0, 8.0, 8.0, 8.0]])
        >>> terminateds = torch.tensor([[False, False, False, False]])
        >>> compute_n_step_returns(rewards, values, terminateds, gamma=0.5, n=2, last_value=torch.tensor([16.0]))
        tensor([[ 4.0000,  5.5000,  9.0000, 12.0000]])
    """
    check_continuation(bootstrap_values, last_value, next_values)
    _check_steps(n)
    if values is None and next_values is None:
        raise TypeError("values: expected a torch.Tensor, since there are no next_values, got None")
    given = (rewards, values, terminateds, truncateds, bootstrap_values, next_values, gamma)
    fields, row_fields, dim = check_arguments(_N_STEP_RETURNS, given, (last_value,), time_dim)
    buffers = None if out is None else check_buffers(_N_STEP_RETURNS, (*fields, *row_fields), out)
    if any(is_sharded(value) for value in (*fields, *row_fields)):
        (returns,) = run_on_shards(_N_STEP_RETURNS, fields, row_fields, dim, partial(_run, n=n))
    else:
        (returns,) = _run(_N_STEP_RETURNS, fields, row_fields, dim, n=n)
    if buffers is not None:
        returns = buffers[0].copy_(returns)
    if truncateds is not None:
        warn_of_truncations(truncateds, bootstrap_values, next_values)
    if CORRECTNESS_WARNINGS:
        warn_of_values(
            rewards,
            terminateds,
            truncateds,
            dim,
            continuation_given=not (bootstrap_values is None and last_value is None and next_values is None),
            bootstrap_values=bootstrap_values,
            inputs={
                "rewards": rewards,
                "values": values,
                "bootstrap_values": bootstrap_values,
                "last_value": last_value,
                "next_values": next_values,
                "gamma": gamma,
            },
        )
    return returns


def _check_steps(n: Any) -> None:
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"n: expected a positive int, got {type(n).__name__}")
    if n < 1:
        raise ValueError(f"n: expected a positive int, got {n}")


def _run(
    algorithm: Algorithm, fields: Sequence[Any], row_fields: Sequence[Any], dim: int, *, n: int
) -> tuple[Tensor, ...]:
    """A checked call on tensors of this process."""
    check_not_time_sharded(algorithm.name)
    first = fields[0]
    problem = problem_of(algorithm, fields, row_fields, dim)
    if first.numel() == 0:
        return (empty_output(first, problem.dtype),)
    returns = _windows.n_step_returns(*problem[:3], n, dim)
    return emitted(algorithm, problem, returns, dim, first)
