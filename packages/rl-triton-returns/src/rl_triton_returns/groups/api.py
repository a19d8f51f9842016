"""compute_group_advantages: what a response is worth among the others to its prompt, without a critic."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from rl_triton_core.engine.algorithm import Field, Range, Signature
from rl_triton_core.engine.arguments import check_arguments, check_choice
from rl_triton_core.engine.buffers import check_buffers
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS, warn_caller
from rl_triton_core.engine.modes import holds_numbers, is_watched
from rl_triton_core.engine.prepared import PLAIN
from torch import Tensor

from rl_triton_returns.groups.operator import call_operator, execute
from rl_triton_returns.groups.options import Options

_REWARDS, _GROUP_IDS, _MASK = Field("rewards", required=True), Field("group_ids", index=True), Field("mask", flag=True)
_EPS = Field("eps", required=True, numbers=Range(0.0, math.inf, "a number >= 0"), per_step=False)
_OF_RESPONSES = Signature(fields=(_REWARDS, _GROUP_IDS, _MASK, _EPS), row_fields=(), differentiable=False)
_OF_TOKENS = Signature(fields=(_MASK, _EPS), row_fields=(_REWARDS, _GROUP_IDS), differentiable=False)


def compute_group_advantages(
    rewards: Tensor,
    group_ids: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["std"] | None = "std",
    unbiased: bool = True,
    eps: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:
    """Compute advantages of responses among the others to the same prompt, as GRPO, Dr. GRPO and RLOO do.

        advantage = (reward - mean of its group) / (std of its group + eps)      the default, GRPO
        advantage = reward - mean of its group                                   scale=None, Dr. GRPO
        advantage = reward - mean of the others in its group                     and baseline="leave_one_out", RLOO

    A group whose rewards are all equal, or that has one response only, tells nothing: its advantages are exactly 0,
    whatever the baseline, the scale and eps are, and whatever rounding makes of a mean. A reward that is NaN or
    infinite makes all advantages of its own group NaN, and of no other.

    Args:
        rewards: one per response. `(num_responses,)` with `group_ids`, or `(num_prompts, samples_per_prompt)`, where
            without `group_ids` every row is a group; float16, bfloat16, float32, float64 or an integer dtype, which
            counts as float32. Strides are honoured as they are.
        group_ids: which prompt a response belongs to, same shape: any integers, in any order, of groups of any sizes.
        mask: non-zero where set, any dtype. In the shape of rewards: the responses that count; others are left out of
            their group, their reward is not read, and their advantage is 0. With one more axis, `(*rewards.shape,
            num_tokens)`: the tokens that are a response's own; every one gets the advantage of its response, any other
            gets 0, also where that advantage is NaN. Every response then counts in its group, whatever its tokens.
        baseline: what a reward is compared with: "mean" of its group, or "leave_one_out", the mean of the others.
        scale: "std" divides by the standard deviation of the group, None by nothing.
        unbiased: whether the variance is the sum of squares over n - 1, as `torch.std` has it, or over n.
        eps: added to the standard deviation, at least 0. With 0, a group of two has advantages of one size, however
            close its rewards.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument.

    Returns:
        The advantages, shaped and laid out in memory like rewards, or like a mask of tokens, in the dtype of rewards
        (float32 for integers). No gradient is recorded through them.

    Raises:
        TypeError: an argument that is no dense tensor (for eps: no number; for unbiased: no bool), rewards or mask of a
            complex dtype, rewards of a float8 dtype, or group_ids that are no integers.
        ValueError: a shape that does not fit, `(num_responses,)` without group_ids, another baseline or scale, or a
            negative eps.
        RuntimeError: tensors on different devices.

    Numerics: statistics are computed in float64 (float32 on devices that lack it), from differences of rewards, the
    variance in a second pass. The error is at most twice that of a float32 loop. Results are bitwise the same from run
    to run on one device, and independent of the order of responses up to rounding. On a GPU one kernel does it all, for
    up to 16384 responses with group_ids, and up to a million in rows of 256; larger batches are sorted and summed by
    PyTorch's own. No call waits for the device.

    Source: Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", 2024,
    section 4.1.1 (GRPO). Liu et al., "Understanding R1-Zero-Like Training: A Critical Perspective", 2025 (Dr. GRPO).
    Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    2024, after Kool et al., "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019 (RLOO).

    Example:
        >>> import torch
        >>> from rl_triton_returns import compute_group_advantages
        >>> rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.1, 0.1, 0.1, 0.1]])
        >>> compute_group_advantages(rewards)
        tensor([[ 0.8660, -0.8660, -0.8660,  0.8660],
                [ 0.0000,  0.0000,  0.0000,  0.0000]])
        >>> prompts = torch.tensor([7, 3, 7, 7, 3])
        >>> rewards = torch.tensor([3.0, 1.0, 0.0, 6.0, 2.0])
        >>> compute_group_advantages(rewards, prompts, baseline="leave_one_out", scale=None)
        tensor([ 0.0000, -1.0000, -4.5000,  4.5000,  1.0000])
        >>> tokens = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 1]])
        >>> compute_group_advantages(rewards, prompts, tokens, scale=None)
        tensor([[ 0.0000,  0.0000,  0.0000],
                [-0.5000,  0.0000,  0.0000],
                [-3.0000, -3.0000, -3.0000],
                [ 3.0000,  3.0000,  0.0000],
                [ 0.5000,  0.5000,  0.5000]])
    """
    check_choice("baseline", baseline, ("mean", "leave_one_out"), takes_none=True)
    check_choice("scale", scale, ("std", None), takes_none=True)
    if not isinstance(unbiased, bool):
        raise TypeError(f"unbiased: expected a bool, got {type(unbiased).__name__}")
    tensors, number, buffer = _checked(rewards, group_ids, mask, eps, out)
    options = Options(baseline == "leave_one_out", scale == "std", unbiased, number)
    given = [x for x in (*tensors, buffer) if x is not None]
    if torch.compiler.is_compiling() or is_watched() or any(type(x) not in PLAIN or x.is_meta for x in given):
        advantages = call_operator(*tensors, options)
        advantages = advantages if buffer is None else buffer.copy_(advantages)
    else:
        advantages = execute(*tensors, options, buffer)
    if CORRECTNESS_WARNINGS:
        _warn_of_values(*tensors[:3])
    return advantages


def _checked(
    rewards: Any, group_ids: Any, mask: Any, eps: Any, out: Any
) -> tuple[tuple[Tensor, Tensor | None, Tensor | None, Tensor | None], float, Tensor | None]:
    """Check a call, and return its tensors as the operator takes them, eps as a float, and the buffer to write into."""
    checked: Any
    if _is_of_tokens(rewards, group_ids, mask):
        signature, counted = _OF_TOKENS, None
        checked = check_arguments(signature, (mask, eps), (rewards, group_ids), -1)
        (tokens, number), (rewards, group_ids), _ = checked
    else:
        signature, tokens = _OF_RESPONSES, None
        checked = check_arguments(signature, (rewards, group_ids, mask, eps), (), 0)
        (rewards, group_ids, counted, number), _, _ = checked
    buffer = None if out is None else check_buffers(signature, (*checked[0], *checked[1]), out)[0]
    return (rewards, group_ids, counted, tokens), number, buffer


def _is_of_tokens(rewards: Any, group_ids: Any, mask: Any) -> bool:
    """Whether the mask is one of tokens, once the shapes of those that are tensors are checked."""
    if not isinstance(rewards, Tensor):
        return False
    shape = tuple(rewards.shape)
    if len(shape) not in (1, 2):
        raise ValueError(f"rewards: expected shape (num_responses,), or (num_prompts, samples_per_prompt), got {shape}")
    if group_ids is None and len(shape) == 1:
        raise ValueError(
            "rewards: expected shape (num_prompts, samples_per_prompt) where there are no group_ids, got "
            f"{shape}; pass group_ids, or rewards.unsqueeze(0) for a single group"
        )
    if isinstance(group_ids, Tensor):
        if tuple(group_ids.shape) != shape:
            raise ValueError(f"group_ids: expected shape {shape} like rewards, got {tuple(group_ids.shape)}")
        if group_ids.dtype == torch.bool:
            raise TypeError(f"group_ids: expected an integer dtype, got {group_ids.dtype}")
    if not isinstance(mask, Tensor) or tuple(mask.shape) == shape:
        return False
    if tuple(mask.shape[:-1]) != shape or mask.dim() == 0:
        of_tokens = f"({', '.join(map(str, (*shape, 'num_tokens')))})"
        raise ValueError(f"mask: expected shape {shape} like rewards, or {of_tokens}, got {tuple(mask.shape)}")
    return True


def _warn_of_values(rewards: Tensor, group_ids: Tensor | None, counted: Tensor | None) -> None:
    """Warn of values that are legal but rarely meant. It looks into the tensors, so it may wait for the device.

    Warns:
        UserWarning: a reward that is NaN or infinite; a group of one response.
    """
    if not holds_numbers(rewards) or rewards.numel() == 0:
        return
    counts = torch.ones_like(rewards, dtype=torch.bool) if counted is None else counted != 0
    if not bool(rewards[counts].isfinite().all()):
        warn_caller("rewards: holds NaN or infinities; all advantages of their groups become NaN")
    if group_ids is None:
        sizes = counts.sum(-1)
        sizes = sizes[sizes > 0]
    else:
        sizes = torch.unique(group_ids[counts], return_counts=True)[1]
    alone = int((sizes == 1).sum())
    if alone:
        name = "rewards" if group_ids is None else "group_ids"
        warn_caller(
            f"{name}: {alone} of {len(sizes)} groups have a single response, whose advantage is 0; a response is "
            "compared with others to the same prompt"
        )
