"""The oracle against worked values, and against the return as a discounted sum of rewards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_returns.reference import compute_discounted_returns

CASES = load_cases(Path(__file__).parent / "cases" / "compute_discounted_returns.json")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    returns = compute_discounted_returns(**case.inputs, **case.params)
    torch.testing.assert_close(returns, case.expected["returns"], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_a_discounted_sum_of_rewards() -> None:
    torch.manual_seed(0)
    steps, gamma = 6, 0.9
    rewards, last_value = torch.randn(1, steps, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    followed = [*rewards[0].tolist(), last_value.item()]
    expected = [sum(gamma**k * x for k, x in enumerate(followed[t:])) for t in range(steps)]
    returns = compute_discounted_returns(rewards, torch.zeros(1, steps), None, gamma, last_value=last_value)
    torch.testing.assert_close(returns[0], torch.tensor(expected, dtype=torch.float64))


def test_one_step_of_each_kind_by_hand() -> None:
    ones = torch.ones(1, 3)
    # The second step is truncated, and continues with its own bootstrap value of 10; the last one with 20.
    truncateds, bootstrap_values = torch.tensor([[0, 1, 0]]), torch.tensor([[7.0, 10.0, 20.0]])
    returns = compute_discounted_returns(ones, torch.zeros(1, 3), truncateds, 0.5, bootstrap_values)
    assert returns.tolist() == [[1 + 0.5 * 6.0, 1 + 0.5 * 10, 1 + 0.5 * 20]]
    # Both flags: terminated.
    returns = compute_discounted_returns(ones, truncateds, truncateds, 0.5, bootstrap_values)
    assert returns.tolist() == [[1 + 0.5 * 1.0, 1.0, 1 + 0.5 * 20]]
    # Truncated with nothing to continue with; the last value serves the last column, truncated or not.
    for flags in ([[0, 1, 0]], [[0, 1, 1]]):
        returns = compute_discounted_returns(
            ones, torch.zeros(1, 3), torch.tensor(flags), 0.5, last_value=torch.tensor([20.0])
        )
        assert returns.tolist() == [[1 + 0.5 * 1.0, 1.0, 1 + 0.5 * 20]]


def test_gamma_per_step() -> None:
    gamma = torch.tensor([[0.5, 0.25]])
    returns = compute_discounted_returns(
        torch.ones(1, 2), torch.zeros(1, 2), None, gamma, last_value=torch.tensor([4.0])
    )
    assert returns.tolist() == [[1 + 0.5 * 2.0, 1 + 0.25 * 4]]


def test_with_nothing_to_continue_with_gamma_is_not_read() -> None:
    nan = float("nan")
    returns = compute_discounted_returns(
        torch.ones(1, 3), torch.zeros(1, 3), torch.tensor([[0, 1, 0]]), torch.tensor([[0.5, nan, nan]])
    )
    assert returns.tolist() == [[1.5, 1.0, 1.0]]


def test_time_first_is_the_transpose() -> None:
    torch.manual_seed(0)
    rewards, last_value = torch.randn(3, 7), torch.randn(3)
    flags = torch.rand(3, 7) < 0.2
    row_major = compute_discounted_returns(rewards, flags, last_value=last_value)
    assert torch.equal(compute_discounted_returns(rewards.T, flags.T, last_value=last_value, time_dim=0), row_major.T)
