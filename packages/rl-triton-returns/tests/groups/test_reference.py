"""The oracle against values worked out by hand, and against what PyTorch says of a mean and a standard deviation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rl_triton_returns.groups.reference import compute_group_advantages
from torch import Tensor

NAN = math.nan
# Two groups, [3, 0, 6] of mean 3 and variance 9 (6 over n), and [1, 2].
REWARDS, IDS = torch.tensor([3.0, 1.0, 0.0, 6.0, 2.0]), torch.tensor([7, -3, 7, 7, -3])
BY_HAND: list[tuple[dict[str, Any], list[float]]] = [
    ({"scale": None}, [0.0, -0.5, -3.0, 3.0, 0.5]),
    ({"scale": None, "baseline": "leave_one_out"}, [0.0, -1.0, -4.5, 4.5, 1.0]),
    ({"eps": 1.0}, [0.0, -0.5 / (0.5**0.5 + 1), -0.75, 0.75, 0.5 / (0.5**0.5 + 1)]),
    ({"eps": 0.0, "unbiased": False}, [0.0, -1.0, -3 / 6**0.5, 3 / 6**0.5, 1.0]),
    ({"eps": 1.0, "baseline": "leave_one_out"}, [0.0, -1 / (0.5**0.5 + 1), -1.125, 1.125, 1 / (0.5**0.5 + 1)]),
]


@pytest.mark.parametrize(("options", "expected"), BY_HAND)
def test_by_hand(options: dict[str, Any], expected: list[float]) -> None:
    advantages = compute_group_advantages(REWARDS, IDS, **options)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=1e-15)


def test_rows_are_groups() -> None:
    rewards = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 0.1)
    torch.testing.assert_close(compute_group_advantages(rewards, eps=0.1), expected)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["std", None])
@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equal_rewards_and_single_responses_are_zero(
    baseline: str, scale: str | None, unbiased: bool, dtype: torch.dtype
) -> None:
    # The mean of three float64s of 0.1 is another number than 0.1.
    rewards = torch.tensor([0.1, 0.1, 0.1, 5.0], dtype=torch.float64)
    assert float(rewards[:3].mean()) != float(rewards[0])
    advantages = compute_group_advantages(
        rewards, torch.tensor([1, 1, 1, 2]), baseline=baseline, scale=scale, unbiased=unbiased, eps=0.0, dtype=dtype
    )
    assert advantages.tolist() == [0.0] * 4


@pytest.mark.parametrize("poison", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["std", None])
def test_what_is_not_finite_makes_nan_of_its_group_alone(poison: float, baseline: str, scale: str | None) -> None:
    rewards = REWARDS.clone()
    rewards[2] = poison
    advantages = compute_group_advantages(rewards, IDS, baseline=baseline, scale=scale)
    assert advantages.isnan().tolist() == [True, False, True, True, False]


def test_a_mask_of_responses_leaves_them_out() -> None:
    rewards, ids = torch.tensor([3.0, NAN, 1.0, 0.0, 6.0, 2.0]), torch.tensor([7, 7, -3, 7, 7, -3])
    mask = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0, 1.0])
    advantages = compute_group_advantages(rewards, ids, mask, scale=None)
    assert advantages.tolist() == [0.0, 0.0, -0.5, -3.0, 3.0, 0.5]


def test_a_mask_of_tokens_spreads_advantages_over_them() -> None:
    rewards = torch.tensor([[1.0, 3.0], [NAN, 0.0]])
    mask = torch.tensor([[[1, 1, 0], [0, 1, 0]], [[0, 0, 0], [0, 1, 0]]])
    advantages = compute_group_advantages(rewards, None, mask, scale=None)
    expected: Tensor = torch.tensor([[[-1.0, -1, 0], [0, 1, 0]], [[0, 0, 0], [0, NAN, 0]]], dtype=torch.float64)
    torch.testing.assert_close(advantages, expected, equal_nan=True)
