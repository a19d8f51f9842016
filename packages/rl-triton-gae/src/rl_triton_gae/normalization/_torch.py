"""Normalised advantages on whole tensors: moments in two passes around an element, merged by Chan's formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from rl_triton_core.engine.precision import widest_dtype
from torch import Tensor

from rl_triton_gae.normalization.options import Options

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Moments(NamedTuple):
    """How many, their mean and the sum of squared distances from it, each a tensor without axes."""

    n: Tensor
    mean: Tensor
    squares: Tensor


def compute(advantages: Tensor, mask: Tensor | None, options: Options, dtype: torch.dtype) -> Tensor:
    """Checked advantages, normalised in `dtype`; differentiable."""
    wide = advantages.to(widest_dtype(advantages.new_empty(0, dtype=dtype)))
    valid = None if mask is None else mask != 0
    if valid is not None:
        # Before anything is computed: neither a NaN there nor its derivative gets further.
        wide = torch.where(valid, wide, 0.0)
    own = _moments(wide, valid)
    total = own if options.group is None else merged(of_ranks(own, options.group))
    freedom = total.n - 1.0 if options.unbiased else total.n
    # A deviation of 0 is no number to divide by, nor one to take the root's derivative at.
    tells = (total.n >= 2.0) & (total.squares != 0.0)
    deviation = torch.where(tells, total.squares / torch.where(tells, freedom, 1.0), 1.0).sqrt()
    if options.shift_mean:
        normalized = torch.where(tells, (wide - total.mean) / (deviation + options.eps), 0.0)
    else:
        normalized = torch.where(tells, wide / (deviation + options.eps), wide)
    return (normalized if valid is None else torch.where(valid, normalized, 0.0)).to(dtype)


def of_ranks(own: Moments, group: ProcessGroup) -> Moments:
    """The moments of every rank, side by side."""
    from rl_triton_core.distributed import all_gather

    return Moments(*all_gather(torch.stack(own), group).unbind(-1))


def merged(parts: Moments) -> Moments:
    """The moments of several parts together."""
    there = parts.n > 0
    # Around one of the means again, for the same reason.
    around = torch.where(there, parts.mean.detach(), -torch.inf).amax()
    around = torch.where(there.any(), around, 0.0)
    distances = torch.where(there, parts.mean - around, 0.0)
    n = parts.n.sum()
    mean = (parts.n * distances).sum() / n.clamp(min=1.0)
    between = (parts.n * torch.where(there, distances - mean, 0.0).square()).sum()
    return Moments(n, around + mean, parts.squares.sum() + between)


def _moments(x: Tensor, valid: Tensor | None) -> Moments:
    """Those of the valid elements."""
    if x.numel() == 0:
        nothing = x.sum()
        return Moments(nothing, nothing, nothing)
    # Around one of them, so that equal ones are exactly at their mean.
    if valid is None:
        around, count = x.detach().amax(), torch.full_like(x.detach().amax(), x.numel())
        distance = x - around
    else:
        count = valid.sum().to(x.dtype)
        around = torch.where(count > 0, torch.where(valid, x.detach(), -torch.inf).amax(), 0.0)
        distance = torch.where(valid, x - around, 0.0)
    mean = distance.sum() / count.clamp(min=1.0)
    from_mean = distance - mean
    if valid is not None:
        from_mean = torch.where(valid, from_mean, 0.0)
    return Moments(count, around + mean, from_mean.square().sum())
