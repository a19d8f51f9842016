"""Clipped ratios, and warnings about policies: what is no probability, and what is no action."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from rl_triton_core.policies import clipped, warn_of_actions, warn_of_probabilities


def test_a_clip_keeps_nan_and_may_lie_beyond_the_dtype() -> None:
    ratios = torch.tensor([0.5, 2.0, math.inf, math.nan])
    torch.testing.assert_close(clipped(ratios, 1.5), torch.tensor([0.5, 1.5, 1.5, math.nan]), equal_nan=True)
    for none in (math.inf, 1e300):
        torch.testing.assert_close(clipped(ratios, none), ratios, equal_nan=True)


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("inf")])
@pytest.mark.parametrize("zero_is_one", [False, True])
def test_a_number_that_is_no_probability(probability: float, zero_is_one: bool) -> None:
    with pytest.warns(UserWarning, match=r"^p: holds a number outside [\[(]0, 1\]"):
        warn_of_probabilities("p", torch.tensor([0.5, probability]), zero_is_one=zero_is_one)


def test_zero_is_a_probability_where_it_is_said_so() -> None:
    with pytest.warns(UserWarning, match=r"^p: holds a number outside \(0, 1\]"):
        warn_of_probabilities("p", torch.tensor([0.0, 0.5]), zero_is_one=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_probabilities("p", torch.tensor([0.0, 0.5, 1.0]), zero_is_one=True)
        warn_of_probabilities("p", torch.tensor([0.5, 1.0]), zero_is_one=False)


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_that_does_not_exist(action: int) -> None:
    with pytest.warns(UserWarning, match=r"^a: holds an action outside \[0, 3\)"):
        warn_of_actions("a", torch.tensor([0, action]), 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint64, torch.bool, torch.int64], ids=str)
def test_actions_that_exist(dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_actions("a", torch.tensor([0, 1]).to(dtype), 3)


def test_where_there_are_no_numbers_nothing_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_actions("a", torch.tensor([7], device="meta"), 3)
        warn_of_probabilities("p", torch.tensor([7.0], device="meta"), zero_is_one=True)

        def one(x: torch.Tensor) -> torch.Tensor:
            warn_of_probabilities("p", x, zero_is_one=True)
            return x

        torch.func.vmap(one)(torch.full((2, 3), 7.0))
