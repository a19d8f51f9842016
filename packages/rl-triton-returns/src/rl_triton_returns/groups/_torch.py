"""Group advantages on whole tensors, for devices without Triton and for batches that the kernel would be slow for.

    deviation = d - mean of d over the group        d = reward - the reward of one of the group's responses
    std       = sqrt(mean of deviation^2)

Equal rewards have d = 0 and so a deviation of exactly 0, whatever rounding does to a mean. Groups that are rows are
summed as such. Others are laid end to end by sorting their ids; a scan that is cut where the id changes then sums them,
in the same order every time and with nothing of one group in the sum of another. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from rl_triton_core.engine.precision import widest_dtype
from rl_triton_core.engine.scan_operator import scan
from torch import Tensor

from rl_triton_returns.groups.options import Options


class Groups(Protocol):
    """Who belongs together. Both methods take and give one value per response."""

    def total(self, x: Tensor) -> Tensor:
        """The sum of x over a response's group."""

    def first(self, x: Tensor, counted: Tensor) -> Tensor:
        """x of the first response that counts in a response's group, or of any where none does."""


class Rows:
    """Every row is a group."""

    def total(self, x: Tensor) -> Tensor:
        return x.sum(-1, keepdim=True).expand_as(x)

    def first(self, x: Tensor, counted: Tensor) -> Tensor:
        return x.gather(-1, counted.to(torch.uint8).argmax(-1, keepdim=True)).expand_as(x)


class Ids(NamedTuple):
    """Responses with the same id are a group."""

    order: Tensor
    starts: Tensor
    first_place: Tensor
    last_place: Tensor

    @classmethod
    def of(cls, group_ids: Tensor, counted: Tensor) -> Ids:
        """Sort by id; within a group, responses that count come first."""
        ids = group_ids.to(torch.int64).reshape(-1).contiguous()
        order = (~counted.reshape(-1)).to(torch.uint8).argsort(stable=True)
        order = order[ids[order].argsort(stable=True)]
        ordered = ids[order]
        starts = torch.cat([torch.ones_like(ordered[:1], dtype=torch.bool), ordered[1:] != ordered[:-1]])
        first_place = torch.searchsorted(ordered, ids)
        return cls(order, starts, first_place, torch.searchsorted(ordered, ids, right=True) - 1)

    def total(self, x: Tensor) -> Tensor:
        sums = scan(x.reshape(-1)[self.order], 1.0, self.starts, dim=0, reverse=False)
        return sums[self.last_place].view(x.shape)

    def first(self, x: Tensor, counted: Tensor) -> Tensor:
        return x.reshape(-1)[self.order[self.first_place]].view(x.shape)


def compute(
    rewards: Tensor, group_ids: Tensor | None, counted: Tensor | None, tokens: Tensor | None, options: Options
) -> Tensor:
    """The advantages of checked arguments, of which there is at least one, in the precision of their statistics."""
    counted = torch.ones_like(rewards, dtype=torch.bool) if counted is None else counted != 0
    groups = Rows() if group_ids is None else Ids.of(group_ids, counted)
    advantages = of_responses(rewards.to(widest_dtype(rewards)), counted, groups, options)
    return advantages if tokens is None else torch.where(tokens != 0, advantages.unsqueeze(-1), 0.0)


def of_responses(rewards: Tensor, counted: Tensor, groups: Groups, options: Options) -> Tensor:
    """The advantage of every response, 0 for those that do not count."""

    def total(x: Tensor) -> Tensor:
        return groups.total(torch.where(counted, x, 0.0))

    size = total(torch.ones_like(rewards))
    others = (size - 1).clamp(min=1)
    differences = rewards - groups.first(rewards, counted)
    sums = total(differences)
    # An infinite reward leaves no mean to compare with.
    deviations = torch.where(sums.isfinite(), differences - sums / size, torch.nan)
    advantages = deviations * (size / others) if options.leave_one_out else deviations
    if options.standardize:
        std = (total(deviations.square()) / (others if options.unbiased else size)).sqrt()
        advantages = torch.where(std == 0, 0.0, advantages / (std + options.eps))
    return torch.where(counted, advantages, 0.0)
