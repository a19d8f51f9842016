"""compute_retrace_continuous: Retrace(lambda) and its kin for continuous actions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from rl_triton_core.boundaries import warn_of_values
from rl_triton_core.engine.algorithm import CLIP, FRACTION, Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.arguments import check_choice
from rl_triton_core.engine.dispatch import registered, run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from torch import Tensor

from rl_triton_retrace import _torch


def _load_tile(coefficients: str) -> Tile:
    from rl_triton_retrace import _tile

    return Tile(getattr(_tile, coefficients), _tile.continuous_emit)


def _lambda_decay(numbers: Numbers) -> float:
    return numbers[0] * numbers[1]


def _with_trace(
    name: str,
    coefficients: Callable[..., Any],
    *,
    reads_target: bool = False,
    reads_behavior: bool = False,
    uniform_decay: Callable[[Numbers], float] | None = None,
) -> Algorithm:
    """The algorithm with a trace, which needs the probabilities that it reads; others only weigh the advantages."""
    return registered(
        Algorithm(
            name=f"compute_retrace_continuous, {name}",
            reverse=True,
            fields=(
                Field("rewards", required=True),
                Field("q_values", required=True),
                Field("log_pi_target", required=reads_target),
                Field("log_pi_behavior", required=reads_behavior),
                Field("next_values", required=True),
                Field("terminateds", flag=True, required=True),
                Field("truncateds", flag=True),
                Field("values"),
                Field("gamma", required=True, numbers=FRACTION),
                Field("lambda_", required=True, numbers=FRACTION),
                Field("c_bar", required=True, numbers=CLIP, per_step=False),
                Field("rho_bar", required=True, numbers=CLIP, per_step=False),
            ),
            row_fields=(),
            outputs=2,
            load_tile=partial(_load_tile, coefficients.__name__),
            coefficients=coefficients,
            emit=_torch.continuous_emit,
            uniform_decay=uniform_decay,
            differentiable=False,
        )
    )


_RATIO = _with_trace("ratio", _torch.ratio_coefficients, reads_target=True, reads_behavior=True)
_LAMBDA = _with_trace("lambda", _torch.lambda_coefficients, uniform_decay=_lambda_decay)
_POLICY = _with_trace("policy", _torch.policy_coefficients, reads_target=True)

_ALGORITHMS = {"retrace": _RATIO, "importance": _RATIO, "harutyunyan": _LAMBDA, "tree_backup": _POLICY}


def compute_retrace_continuous(
    log_pi_target: Tensor | None,
    log_pi_behavior: Tensor | None,
    q_values: Tensor,
    next_values: Tensor,
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    gamma: float | Tensor,
    lambda_: float | Tensor = 1.0,
    c_bar: float | None = 1.0,
    rho_bar: float | None = 1.0,
    *,
    trace: str = "retrace",
    values: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute off-policy targets for Q(s, a) with actions of any kind, and advantages, by Retrace(lambda) and its kin.

        delta[t]      = rewards[t] + gamma * next_values[t] - q_values[t]         next_values is 0 at a termination
        D[t]          = delta[t] + gamma * c[t+1] * D[t+1]                        cut after an ended step; D[T] = 0
        targets[t]    = q_values[t] + D[t]
        ratio[t]      = exp(log_pi_target[t] - log_pi_behavior[t])
        advantages[t] = min(rho_bar, ratio[t]) * (targets[t] - values[t])         with `values`, else
                        min(rho_bar, ratio[t]) * (rewards[t] + gamma * q[t] - q_values[t])

    where q[t] is targets[t+1] inside an episode, next_values[t] at a truncation and in the last column, and 0 at a
    termination. `trace` says what c[t+1] is:

        "retrace"      lambda_ * min(c_bar, ratio[t+1])      Retrace(lambda): safe whatever the behavior
        "importance"   lambda_ * ratio[t+1]                  per-decision importance sampling: no bias, much variance
        "harutyunyan"  lambda_                               Q(lambda) with off-policy corrections: for near policies
        "tree_backup"  lambda_ * exp(log_pi_target[t+1])     tree backup: needs no behavior

    The expectations are the caller's: for continuous actions, of samples of the policy. What a boundary hides is never
    read: neither a NaN behind it nor an infinite ratio reaches the steps before.

    Args:
        log_pi_target: log pi(a_t|s_t) under the policy that is learned, for the actions that were taken, same shape as
            rewards. None where nothing reads it: with "harutyunyan", if log_pi_behavior is None too.
        log_pi_behavior: log mu(a_t|s_t) under the policy that took the actions, same shape. None with "harutyunyan" and
            "tree_backup", whose targets do not read it: the advantages then have no weight in front.
        q_values: Q(s_t, a_t), same shape.
        next_values: E_pi Q(s_{t+1}, .), same shape; at truncated steps that of the final observation, never of the
            reset. Ignored where a step terminated.
        rewards: r[t] for the step from s_t to s_{t+1}, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides of all tensors are honoured as they are: transposed, sliced and expanded views are read in place.
        terminateds: non-zero at the step after which an episode truly ended, same shape, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, same shape, any dtype; None if
            that never happens. A step with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        lambda_: trace decay in [0, 1], one number or one per step: `lambda_[t]` is part of c[t+1].
        c_bar: bound on the ratios that carry the traces of "retrace", a positive number; `math.inf` or None for no
            bound. Other traces ignore it.
        rho_bar: bound on the ratio that weighs an advantage, likewise.
        trace: "retrace", "importance", "harutyunyan" or "tree_backup".
        values: E_pi Q(s_t, .), same shape.
        cu_seqlens: where each of the sequences begins that are packed one after the other along axis 0, of any length,
            and where the last one ends: `(num_sequences + 1,)`, int32 or int64, never decreasing, on the device of
            rewards, where alone it is read. A sequence is then what a row is otherwise. Steps that belong to no
            sequence give 0. It goes with `time_dim=0`.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: buffers for the two results, of their shape, dtype and device, which share no memory with an argument.

    Returns:
        targets and advantages, shaped and laid out in memory like rewards, in the promoted dtype of all real inputs. No
        gradient is recorded for either.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma and lambda_: no number), None where it is read, or of
            a complex or float8 dtype; a bound that is no number; a trace that is no str.
        ValueError: shapes that differ, a number out of its range, a trace of another name, or a time axis that is not
            there.
        RuntimeError: tensors on different devices.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop. A
    ratio is bounded before it multiplies anything, so one that overflows is its bound; one that is NaN stays NaN inside
    its episode. A density may be above 1, and with it a trace of "tree_backup". Results are bitwise the same from run
    to run on one device.

    Source: Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning", 2016, equations 3 and 4, and the
    traces of its section 3: Harutyunyan et al., "Q(lambda) with Off-Policy Corrections", 2016; Precup, Sutton and
    Singh, "Eligibility Traces for Off-Policy Policy Evaluation", 2000, for importance sampling and tree backup.

    Example:
        >>> import torch
        >>> from rl_triton_retrace import compute_retrace_continuous
        >>> targets, advantages = compute_retrace_continuous(
        ...     log_pi_target=torch.tensor([[0.5, 0.25]]).log(),
        ...     log_pi_behavior=torch.tensor([[1.0, 0.5]]).log(),
        ...     q_values=torch.tensor([[1.0, 2.0]]),
        ...     next_values=torch.tensor([[3.0, 0.0]]),
        ...     rewards=torch.tensor([[1.0, 4.0]]),
        ...     terminateds=torch.tensor([[False, True]]),
        ...     truncateds=None,
        ...     gamma=0.5,
        ...     values=torch.tensor([[1.0, 1.0]]),
        ... )
        >>> targets
        tensor([[3., 4.]])
        >>> advantages
        tensor([[1.0000, 1.5000]])
    """
    check_choice("trace", trace, _ALGORITHMS)
    if log_pi_target is None and log_pi_behavior is not None:
        raise TypeError("log_pi_target: expected a torch.Tensor, since log_pi_behavior is given, got None")
    fields = (
        *(rewards, q_values, log_pi_target, log_pi_behavior, next_values, terminateds, truncateds, values),
        *(gamma, lambda_, math.inf if c_bar is None or trace == "importance" else c_bar),
        math.inf if rho_bar is None else rho_bar,
    )
    targets, advantages = run(_ALGORITHMS[trace], fields, (), time_dim, out, cu_seqlens)
    if CORRECTNESS_WARNINGS:
        warn_of_values(
            rewards,
            terminateds,
            truncateds,
            time_dim % rewards.dim(),
            continuation_given=True,
            bootstrap_values=None,
            cu_seqlens=cu_seqlens,
            inputs={
                "log_pi_target": log_pi_target,
                "log_pi_behavior": log_pi_behavior,
                "q_values": q_values,
                "next_values": next_values,
                "rewards": rewards,
                "gamma": gamma,
                "lambda_": lambda_,
                "values": values,
            },
        )
    return targets, advantages
