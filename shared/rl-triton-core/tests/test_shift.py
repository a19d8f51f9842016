"""What the step beside each one holds, with and without a value at the edge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rl_triton_core.engine.shift import of_next, of_previous
from torch import Tensor


@pytest.mark.parametrize("dim", [0, 1])
def test_neighbours(dim: int) -> None:
    x, edge = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([7, 8])

    def both(values: Tensor | None) -> tuple[list[list[int]], ...]:
        moved = x.movedim(1, dim)
        return tuple(of(moved, values, dim).movedim(dim, 1).tolist() for of in (of_next, of_previous))

    assert both(edge) == ([[2, 3, 7], [5, 6, 8]], [[7, 1, 2], [8, 4, 5]])
    assert both(None) == ([[2, 3, 0], [5, 6, 0]], [[0, 1, 2], [0, 4, 5]])


@pytest.mark.parametrize("of", [of_next, of_previous])
def test_short_rows(of: Callable[..., Tensor]) -> None:
    x, edge = torch.tensor([[True], [True]]), torch.tensor([False, True])
    assert of(x, edge, 1).tolist() == [[False], [True]]
    assert of(x, None, 1).tolist() == [[False], [False]]
    # Nothing stands beside a step that is not there.
    assert of(x[:, :0], edge, 1).shape == of(x[:, :0], None, 1).shape == (2, 0)
