"""Group advantages as they are defined: one group after the other, one reward after the other.

Shao et al., "DeepSeekMath", 2024, section 4.1.1 (mean and standard deviation); Ahmadian et al., "Back to Basics", 2024
(the mean of the others). With n rewards r[1] .. r[n] in a group:

    deviation[i]  = 1/n     * sum_k (r[i] - r[k])        r[i] minus the mean
    deviation[i]  = 1/(n-1) * sum_k (r[i] - r[k])        r[i] minus the mean of the others
    std           = sqrt(1/(n-1) * sum_k (r[k] - mean)^2)

Differences come first, so that rewards which are equal have deviations of exactly 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_group_advantages(
    rewards: Tensor,
    group_ids: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    baseline: str = "mean",
    scale: str | None = "std",
    unbiased: bool = True,
    eps: float = 1e-6,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The advantages, in `dtype`. Arguments as for `rl_triton_returns.compute_group_advantages`."""
    over_tokens = mask is not None and mask.dim() > rewards.dim()
    counted = torch.ones(rewards.shape, dtype=torch.bool) if mask is None or over_tokens else mask != 0
    ids = torch.arange(rewards.shape[0]).unsqueeze(-1).expand_as(rewards) if group_ids is None else group_ids

    advantages = torch.zeros(rewards.shape, dtype=dtype)
    for group in set(ids[counted].tolist()):
        members = counted & (ids == group)
        advantages[members] = _in_one_group(rewards[members].to(dtype), baseline, scale, unbiased, eps)
    if mask is None or not over_tokens:
        return advantages
    return torch.where(mask != 0, advantages.unsqueeze(-1), 0.0)


def _in_one_group(rewards: Tensor, baseline: str, scale: str | None, unbiased: bool, eps: float) -> Tensor:
    """The advantages of a group's rewards, of which there is at least one."""
    size = len(rewards)
    if not rewards.isfinite().all():
        return torch.full_like(rewards, torch.nan)
    if size == 1:
        return torch.zeros_like(rewards)
    differences = torch.zeros_like(rewards)
    for reward in rewards:
        differences = differences + (rewards - reward)
    advantages = differences / (size if baseline == "mean" else size - 1)
    if scale is None:
        return advantages

    squares = torch.zeros_like(rewards[0])
    for deviation in differences / size:
        squares = squares + deviation * deviation
    std = (squares / (size - 1 if unbiased else size)).sqrt()
    return torch.zeros_like(rewards) if std == 0 else advantages / (std + eps)
