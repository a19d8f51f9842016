"""Rewards are moved to valid steps, by the definition."""

from __future__ import annotations

import math

import pytest
import torch
from rl_triton_core.masks import rewards_on_valid_steps
from torch import Tensor


def by_definition(rewards: Tensor, mask: Tensor, dones: Tensor | None) -> Tensor:
    moved = torch.zeros_like(rewards, dtype=torch.float64)
    for row in range(rewards.shape[0]):
        taker = None
        for t in range(rewards.shape[1]):
            if mask[row, t] != 0:
                taker = t
            if taker is not None:
                moved[row, taker] += rewards[row, t].item()
            if dones is not None and dones[row, t] != 0:
                taker = None
    return moved


@pytest.mark.parametrize("with_dones", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_against_the_definition(dtype: torch.dtype, with_dones: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(-9, 9, (40, 23), generator=generator).to(dtype)
    mask = torch.rand(40, 23, generator=generator) < torch.linspace(0, 1, 40).unsqueeze(1)
    dones = (torch.rand(40, 23, generator=generator) < 0.2).int() if with_dones else None
    expected = by_definition(rewards, mask, dones)
    for dim in (1, 0):
        given = [x if x is None or dim else x.t() for x in (rewards, mask, dones)]
        moved = rewards_on_valid_steps(*given, time_dim=dim)  # type: ignore[arg-type]
        assert moved.dtype == (torch.float32 if dtype == torch.int64 else dtype)
        torch.testing.assert_close(moved if dim else moved.t(), expected, check_dtype=False)


def test_what_nobody_gets_may_be_nan() -> None:
    rewards = torch.tensor([[math.nan, 1.0, 2.0, math.nan, 3.0]], requires_grad=True)
    mask, dones = torch.tensor([[0, 1, 0, 0, 1]]), torch.tensor([[0, 0, 1, 0, 0]])
    moved = rewards_on_valid_steps(rewards, mask, dones)
    assert moved.tolist() == [[0.0, 3.0, 0.0, 0.0, 3.0]]
    (gradient,) = torch.autograd.grad(moved.sum(), rewards)
    assert gradient.tolist() == [[0.0, 1.0, 1.0, 0.0, 1.0]]


def test_empty_and_wrong_calls() -> None:
    for shape in ((0, 4), (2, 0)):
        assert rewards_on_valid_steps(torch.empty(shape), torch.empty(shape)).shape == shape
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"mask: expected shape \(2, 3\) like rewards, got \(3, 2\)"):
        rewards_on_valid_steps(x, x.t())
    with pytest.raises(TypeError, match=r"mask: expected a torch\.Tensor, got None"):
        rewards_on_valid_steps(x, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time_dim=0"):
        rewards_on_valid_steps(x[0], x[0])
