"""What the step beside each one holds, on whole tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def of_next(x: Tensor, behind: Tensor | None, dim: int) -> Tensor:
    """x of the step after each one. Behind the last is `behind`, one value a row; None for 0."""
    inner = x.shape[dim] - 1
    return x if inner < 0 else torch.cat([x.narrow(dim, 1, inner), _edge(x, behind, dim)], dim)


def of_previous(x: Tensor, before: Tensor | None, dim: int) -> Tensor:
    """x of the step before each one. Before the first is `before`, one value a row; None for 0."""
    inner = x.shape[dim] - 1
    return x if inner < 0 else torch.cat([_edge(x, before, dim), x.narrow(dim, 0, inner)], dim)


def _edge(x: Tensor, values: Tensor | None, dim: int) -> Tensor:
    return torch.zeros_like(x.narrow(dim, 0, 1)) if values is None else values.unsqueeze(dim)
