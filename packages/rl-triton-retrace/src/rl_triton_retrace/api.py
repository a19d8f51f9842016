"""compute_retrace: Retrace(lambda) targets and advantages."""

from __future__ import annotations

import math
from typing import Any

from rl_triton_core.boundaries import FlagConventions, flags_behind, warn_of_values
from rl_triton_core.engine.algorithm import CLIP, FRACTION, Algorithm, Field, Tile
from rl_triton_core.engine.dispatch import run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from rl_triton_core.policies import warn_of_actions, warn_of_probabilities
from torch import Tensor

from rl_triton_retrace import _torch


def _load_tile() -> Tile:
    from rl_triton_retrace import _tile

    return Tile(_tile.coefficients, _tile.emit, _tile.derive)


_RETRACE = FlagConventions.of(
    Algorithm(
        name="compute_retrace",
        reverse=True,
        fields=(
            Field("rewards", required=True),
            Field("action_probs_target", required=True, wide=True),
            Field("next_q_values_all", required=True, wide=True),
            Field("next_action_probs_target", wide=True),
            Field("q_values", required=True),
            Field("action_probs_behavior", required=True),
            Field("actions", required=True, index=True),
            Field("terminateds", flag=True, required=True),
            Field("truncateds", flag=True),
            Field("values"),
            Field("gamma", required=True, numbers=FRACTION),
            Field("lambda_", required=True, numbers=FRACTION),
            Field("c_bar", required=True, numbers=CLIP, per_step=False),
            Field("rho_bar", required=True, numbers=CLIP, per_step=False),
        ),
        row_fields=(Field("next_action_probs_target", wide=True),),
        outputs=2,
        load_tile=_load_tile,
        coefficients=_torch.coefficients,
        emit=_torch.emit,
        derived=2,
        differentiable=False,
    )
)


def compute_retrace(
    action_probs_target: Tensor,
    action_probs_behavior: Tensor,
    q_values: Tensor,
    next_q_values_all: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    gamma: float | Tensor,
    lambda_: float | Tensor = 1.0,
    c_bar: float | None = 1.0,
    rho_bar: float | None = 1.0,
    *,
    next_action_probs_target: Tensor | None = None,
    values: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Tensor | tuple[Tensor, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute off-policy targets for Q, and advantages, by Retrace(lambda).

        expected[t]   = sum over a of pi(a|s_{t+1}) * Q(s_{t+1}, a)               0 at a termination
        delta[t]      = rewards[t] + gamma * expected[t] - q_values[t]
        ratio[t]      = pi(a_t|s_t) / mu(a_t|s_t)
        D[t]          = delta[t] + gamma * lambda_ * min(c_bar, ratio[t+1]) * D[t+1]
        targets[t]    = q_values[t] + D[t]                                        D is cut after an ended step; D[T] = 0
        advantages[t] = min(rho_bar, ratio[t]) * (targets[t] - values[t])         with `values`, else
                        min(rho_bar, ratio[t]) * (rewards[t] + gamma * q[t] - q_values[t])

    where q[t] is targets[t+1] inside an episode, expected[t] at a truncation and in the last column, and 0 at a
    termination. To train a policy, pass `values` = E_pi Q(s_t, .): the advantages are then the policy-gradient form. Do
    not train one on the residual that comes without: it is taken against Q(s_t, a_t), and carries no signal of the
    action once Q is exact.

    pi(.|s_{t+1}) is `action_probs_target[t+1]` inside an episode. At a truncation and in the last column the window
    does not hold it, and `action_probs_target[t]` stands in; `next_action_probs_target` has the true one. An action of
    probability 0 contributes 0 whatever its Q. What a boundary hides is never read: NaN behind it stays there.

    Args:
        action_probs_target: pi(.|s_t), t = 0 .. T-1: the shape of rewards and a last axis of A actions.
        action_probs_behavior: mu(a_t|s_t), the shape of rewards.
        q_values: Q(s_t, a_t), the shape of rewards.
        next_q_values_all: Q(s_{t+1}, .), the shape of action_probs_target. At truncated steps, s_{t+1} is the final
            observation, never that of the reset.
        actions: a_t in [0, A), the shape of rewards, any integer dtype. Beyond that range ratio[t] is NaN, and with it
            advantages[t] and every earlier target of the episode; nothing is read out of bounds.
        rewards: r[t] for the step from s_t to s_{t+1}. `(num_envs, seq_len)`, or any shape with its time axis named by
            `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
            Strides of all tensors are honoured as they are: transposed, sliced and expanded views are read in place.
        terminateds: non-zero at the step after which an episode truly ended, the shape of rewards, any dtype.
        truncateds: non-zero at the step after which a time limit cut the episode off, the shape of rewards, any dtype;
            None if that never happens. A step with both flags counts as terminated.
        gamma: discount in [0, 1], one number or one per step: `gamma[t]` belongs to the transition t to t+1.
        lambda_: trace decay in [0, 1], one number or one per step.
        c_bar: bound on the ratios that carry the traces, a positive number; `math.inf` or None for no bound.
        rho_bar: bound on the ratio that weighs an advantage, likewise.
        next_action_probs_target: pi(.|s_{t+1}) for every step, the shape of action_probs_target; or for the last column
            only, the same without its time axis.
        values: E_pi Q(s_t, .), the shape of rewards.
        boundary: where a flag stands. "ends_at": at the step that ended an episode. "starts_at": at the first step of
            the next episode, so that a flag at t says that step t-1 ended; flags at t = 0 are ignored, and every other
            argument stays where it is.
        next_start: the flags of step T under "starts_at", which end step T-1: the shape of rewards without its time
            axis, any dtype; a pair, for terminateds and for truncateds, where truncateds are given. None: not ended.
        cu_seqlens: where each of the sequences begins that are packed one after the other along axis 0, of any length,
            and where the last one ends: `(num_sequences + 1,)`, int32 or int64, never decreasing, on the device of
            rewards, where alone it is read. A sequence is then what a row is otherwise, and one step of
            `next_action_probs_target` is `(num_sequences, *, A)` for rewards of `(total_steps, *)`. Steps that belong
            to no sequence give 0. It goes with `time_dim=0` and `boundary="ends_at"`.
        time_dim: the time axis of rewards; negative counts from its end, without the actions. `(T, N)` and
            `(T, N, A)` buffers pass 0.
        out: buffers for the two results, of their shape, dtype and device, which share no memory with an argument.

    Returns:
        targets and advantages, shaped and laid out in memory like rewards, in the promoted dtype of all real inputs. No
        gradient is recorded for either.

    Raises:
        TypeError: an argument that is no dense tensor (for gamma and lambda_: no number), or of a complex or float8
            dtype; actions of a floating dtype; a bound that is no number.
        ValueError: shapes that differ, no actions at all, a number out of its range, or a time axis that is not there.
        RuntimeError: tensors on different devices.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop. A
    ratio of NaN stays NaN under its bound. Results are bitwise the same from run to run on one device.

    Source: Munos et al., "Safe and Efficient Off-Policy Reinforcement Learning", 2016, equations 3 and 4.

    Example:
        >>> import torch
        >>> from rl_triton_retrace import compute_retrace
        >>> targets, advantages = compute_retrace(
        ...     action_probs_target=torch.tensor([[[0.5, 0.5], [1.0, 0.0]]]),
        ...     action_probs_behavior=torch.tensor([[0.5, 0.8]]),
        ...     q_values=torch.tensor([[1.0, 2.0]]),
        ...     next_q_values_all=torch.tensor([[[2.0, 4.0], [6.0, 8.0]]]),
        ...     actions=torch.tensor([[1, 0]]),
        ...     rewards=torch.tensor([[1.0, 1.0]]),
        ...     terminateds=torch.tensor([[False, True]]),
        ...     truncateds=None,
        ...     gamma=0.5,
        ...     values=torch.tensor([[1.5, 1.5]]),
        ... )
        >>> targets
        tensor([[1.5000, 1.0000]])
        >>> advantages
        tensor([[ 0.0000, -0.5000]])
    """
    one_step = _is_one_step(next_action_probs_target, rewards, cu_seqlens)
    fields = (
        rewards,
        action_probs_target,
        next_q_values_all,
        None if one_step else next_action_probs_target,
        q_values,
        action_probs_behavior,
        actions,
        terminateds,
        truncateds,
        values,
        gamma,
        lambda_,
        math.inf if c_bar is None else c_bar,
        math.inf if rho_bar is None else rho_bar,
    )
    algorithm, row_values = _RETRACE.ends_at, (next_action_probs_target if one_step else None,)
    if boundary != "ends_at" or next_start is not None:
        algorithm, row_values = _RETRACE.starts_at, (*row_values, *flags_behind(boundary, next_start, truncateds))
    targets, advantages = run(algorithm, fields, row_values, time_dim, out, cu_seqlens)
    if CORRECTNESS_WARNINGS:
        warn_of_values(
            rewards,
            terminateds,
            truncateds,
            time_dim % rewards.dim(),
            continuation_given=True,
            bootstrap_values=None,
            boundary=boundary,
            next_start=next_start,
            cu_seqlens=cu_seqlens,
            inputs={
                "action_probs_target": action_probs_target,
                "action_probs_behavior": action_probs_behavior,
                "q_values": q_values,
                "next_q_values_all": next_q_values_all,
                "rewards": rewards,
                "gamma": gamma,
                "lambda_": lambda_,
                "next_action_probs_target": next_action_probs_target,
                "values": values,
            },
        )
        warn_of_actions("actions", actions, action_probs_target.shape[-1])
        warn_of_probabilities("action_probs_behavior", action_probs_behavior, zero_is_one=False)
        warn_of_probabilities("action_probs_target", action_probs_target, zero_is_one=True)
        if next_action_probs_target is not None:
            warn_of_probabilities("next_action_probs_target", next_action_probs_target, zero_is_one=True)
    return targets, advantages


def _is_one_step(policy: Any, rewards: Any, cu_seqlens: Any) -> bool:
    """Whether there is a policy for the last column of each row only, or of each sequence."""
    if not isinstance(policy, Tensor) or not isinstance(rewards, Tensor):
        return False
    if cu_seqlens is None:
        # No time, but actions.
        return policy.dim() == rewards.dim()
    return policy.dim() == rewards.dim() + 1 and policy.shape[:1] != rewards.shape[:1]
