"""Group advantages on whole tensors, for devices without Triton and for batches that the kernel would be slow for.

    deviation = d - mean of d over the group        d = reward - the largest reward of the group
    std       = sqrt(mean of deviation^2)

Equal rewards have d = 0 and so a deviation of exactly 0, whatever rounding does to a mean. Groups that are rows are
summed as such. Of others, each has a place of its own, which is where its id comes first among all ids in order. Sums
are made there one after the other on the CPU; elsewhere by a scan that is cut where the id changes, since additions in
parallel would come in another order every time. Nothing of one group is ever in the sum of another, and nothing here
waits for the device.
"""

from __future__ import annotations

from typing import Protocol

import torch
from rl_triton_core.engine.precision import result_dtype, widest_dtype
from rl_triton_core.engine.scan_operator import scan
from torch import Tensor

from rl_triton_returns.groups.options import Options

# Devices that add to given places in one thread, and so in order.
ADD_IN_ORDER = frozenset({"cpu"})


class Groups(Protocol):
    """Who belongs together. Both methods take and give one value per response."""

    def total(self, x: Tensor) -> Tensor:
        """The sum of x over a response's group."""

    def largest(self, x: Tensor) -> Tensor:
        """The largest x in a response's group, NaN if one is."""


class Rows:
    """Every row is a group."""

    def total(self, x: Tensor) -> Tensor:
        return x.sum(-1, keepdim=True).expand_as(x)

    def largest(self, x: Tensor) -> Tensor:
        return x.amax(-1, keepdim=True).expand_as(x)


class Ids:
    """Responses with the same id are a group."""

    def __init__(self, group_ids: Tensor) -> None:
        self.ids = group_ids.to(torch.int64).reshape(-1).contiguous()
        self.ordered, self.order = self.ids.sort(stable=True)
        self.places = torch.searchsorted(self.ordered, self.ids)

    def total(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        if flat.device.type in ADD_IN_ORDER:
            return torch.zeros_like(flat).index_add_(0, self.places, flat)[self.places].view(x.shape)
        starts = torch.cat([torch.ones_like(self.ordered[:1], dtype=torch.bool), self.ordered[1:] != self.ordered[:-1]])
        sums = scan(flat[self.order], 1.0, starts, dim=0, reverse=False)
        return sums[torch.searchsorted(self.ordered, self.ids, right=True) - 1].view(x.shape)

    def largest(self, x: Tensor) -> Tensor:
        least = torch.full_like(x, -torch.inf).reshape(-1)
        return least.scatter_reduce_(0, self.places, x.reshape(-1), "amax")[self.places].view(x.shape)


def compute(
    rewards: Tensor, group_ids: Tensor | None, counted: Tensor | None, tokens: Tensor | None, options: Options
) -> Tensor:
    """The advantages of checked arguments, of which there is at least one."""
    counts = torch.ones_like(rewards, dtype=torch.bool) if counted is None else counted != 0
    groups = Rows() if group_ids is None else Ids(group_ids)
    advantages = of_responses(rewards.to(widest_dtype(rewards)), counts, groups, options).to(result_dtype([rewards]))
    if tokens is None:
        return advantages
    return torch.where(tokens if tokens.dtype == torch.bool else tokens != 0, advantages.unsqueeze(-1), 0.0)


def of_responses(rewards: Tensor, counted: Tensor, groups: Groups, options: Options) -> Tensor:
    """The advantage of every response, 0 for those that do not count."""

    def total(x: Tensor) -> Tensor:
        return groups.total(torch.where(counted, x, 0.0))

    size = total(torch.ones_like(rewards))
    others = (size - 1).clamp(min=1)
    differences = rewards - groups.largest(torch.where(counted, rewards, -torch.inf))
    sums = total(differences)
    # An infinite reward leaves no mean to compare with.
    deviations = torch.where(sums.isfinite(), differences - sums / size, torch.nan)
    advantages = deviations * (size / others) if options.leave_one_out else deviations
    if options.standardize:
        std = (total(deviations.square()) / (others if options.unbiased else size)).sqrt()
        advantages = torch.where(std == 0, 0.0, advantages / (std + options.eps))
    return torch.where(counted, advantages, 0.0)
