"""The example of masked token-level GAE: equal to the loops of trainers where these are right, and how they are not."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_gae import reference
from torch import Tensor

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "examples" / "masked_gae.py"))
DISCOUNTS = pytest.mark.parametrize(("gamma", "lambda_"), [(1.0, 0.95), (0.99, 0.9), (1.0, 1.0)])
SHAPE = (6, 40)


def drawn() -> tuple[Tensor, Tensor]:
    rewards, values = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return rewards, values


def padded() -> Tensor:
    """Responses of all lengths, with padding at the end."""
    return (torch.arange(SHAPE[1]) < torch.tensor([[40], [1], [17], [39], [0], [25]])).long()


def with_tools() -> Tensor:
    """Such responses, with tokens of tools in the middle; row 0 has none."""
    masked = torch.rand(SHAPE, generator=torch.Generator().manual_seed(1)) < 0.4
    masked[0] = False
    return padded() * ~masked


def written_alone(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lambda_: float) -> Tensor:
    """The advantages of the tokens that the policy wrote, each response computed without its others."""
    advantages = torch.zeros_like(rewards)
    for row, written in enumerate(mask.bool()):
        r, v = rewards[row : row + 1, written], values[row : row + 1, written]
        alone = reference.compute_gae(r, v, torch.zeros_like(r), None, gamma, lambda_)
        assert isinstance(alone, Tensor)
        advantages[row, written] = alone[0]
    return advantages


def errors(function: str, mask: Tensor, gamma: float, lambda_: float) -> Tensor:
    """The largest error of each response."""
    result = EXAMPLE[function](*drawn(), mask, gamma, lambda_)
    return (result - written_alone(*drawn(), mask, gamma, lambda_)).abs().amax(1)


@DISCOUNTS
@pytest.mark.parametrize("function", ["one_call", "decaying_loop", "cutting_loop"])
def test_all_are_right_with_padding_at_the_end(function: str, gamma: float, lambda_: float) -> None:
    result = EXAMPLE[function](*drawn(), padded(), gamma, lambda_)
    expected = written_alone(*drawn(), padded(), gamma, lambda_)
    assert_within_rule(result, expected, expected, torch.float64)


@DISCOUNTS
def test_the_call_is_right_with_tokens_of_tools(gamma: float, lambda_: float) -> None:
    rewards, values = drawn()
    expected = written_alone(rewards, values, with_tools(), gamma, lambda_)
    for x in (rewards, values):
        x.masked_fill_(with_tools() == 0, torch.nan)
    result = EXAMPLE["one_call"](rewards, values, with_tools(), gamma, lambda_)
    assert_within_rule(result, expected, expected, torch.float64)


@DISCOUNTS
def test_the_loops_are_not(gamma: float, lambda_: float) -> None:
    broken = (with_tools() != padded()).any(1)
    assert broken.sum() >= 3
    for function in ("decaying_loop", "cutting_loop"):
        off = errors(function, with_tools(), gamma, lambda_) > 0.01
        cancels = function == "decaying_loop" and gamma == lambda_ == 1.0
        assert torch.equal(off, torch.zeros_like(broken) if cancels else broken)


def test_a_loop_that_carries_both_over_is_right() -> None:
    rewards, values = drawn()
    mask, gamma, lambda_ = with_tools(), 0.99, 0.9
    advantages, value_ahead, advantage_ahead = torch.zeros(SHAPE).double(), *torch.zeros(2, SHAPE[0]).double()
    for t in reversed(range(SHAPE[1])):
        advantage = rewards[:, t] + gamma * value_ahead - values[:, t] + gamma * lambda_ * advantage_ahead
        written = mask[:, t] != 0
        advantages[:, t] = torch.where(written, advantage, 0.0)
        value_ahead = torch.where(written, values[:, t], value_ahead)
        advantage_ahead = torch.where(written, advantage, advantage_ahead)
    expected = written_alone(rewards, values, mask, gamma, lambda_)
    assert_within_rule(advantages, expected, expected, torch.float64)


def test_prints_what_each_makes_of_a_response(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"]()
    printed: list[Any] = [line.split(":") for line in capsys.readouterr().out.splitlines()]
    alone, *results = (float(number) for _, number in printed)
    assert [name.strip() for name, _ in printed[1:]] == ["one_call", "decaying_loop", "cutting_loop"]
    # The error of 0.5 is ten tokens away; six more tokens and a value of 0 between; nothing behind that value.
    through = 0.95**6 * 0.5 + 0.95**16 * 0.5 - 0.5
    for number, expected in zip((alone, *results), (0.95**10 * 0.5, 0.95**10 * 0.5, through, -0.5), strict=True):
        assert abs(number - expected) < 5.1e-4
