"""The oracle against worked values, and against the lambda-return's definition as a mixture of n-step returns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_lambda.reference import compute_lambda_returns

CASES = load_cases(Path(__file__).parent / "cases" / "compute_lambda_returns.json")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    returns = compute_lambda_returns(**case.inputs, **case.params)
    torch.testing.assert_close(returns, case.expected["returns"], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_a_mixture_of_n_step_returns() -> None:
    torch.manual_seed(0)
    steps, gamma, lambda_ = 6, 0.9, 0.8
    rewards, next_values = torch.randn(1, steps, dtype=torch.float64), torch.randn(1, steps, dtype=torch.float64)

    def n_step(t: int, n: int) -> float:
        discounted = sum(gamma**k * float(rewards[0, t + k]) for k in range(n))
        return discounted + gamma**n * float(next_values[0, t + n - 1])

    expected = []
    for t in range(steps):
        longest = steps - t
        mixed = sum((1 - lambda_) * lambda_ ** (n - 1) * n_step(t, n) for n in range(1, longest))
        expected.append(mixed + lambda_ ** (longest - 1) * n_step(t, longest))
    returns = compute_lambda_returns(rewards, next_values, torch.zeros(1, steps), None, gamma, lambda_)
    torch.testing.assert_close(returns[0], torch.tensor(expected, dtype=torch.float64))


def test_one_step_of_each_kind_by_hand() -> None:
    ones = torch.ones(1, 3)
    next_values, truncateds = torch.tensor([[2.0, 4.0, 8.0]]), torch.tensor([[0, 1, 0]])
    # The second step is truncated: its next value, or its bootstrap value, counts in full. So does the last one's.
    returns = compute_lambda_returns(ones, next_values, torch.zeros(1, 3), truncateds, 0.5, 0.5)
    assert returns.tolist() == [[1 + 0.5 * (0.5 * 2 + 0.5 * 3.0), 1 + 0.5 * 4, 1 + 0.5 * 8]]
    bootstrap_values = torch.tensor([[7.0, 10.0, 20.0]])
    returns = compute_lambda_returns(ones, next_values, torch.zeros(1, 3), truncateds, 0.5, 0.5, bootstrap_values)
    assert returns.tolist() == [[1 + 0.5 * (0.5 * 2 + 0.5 * 6.0), 1 + 0.5 * 10, 1 + 0.5 * 20]]
    # Both flags: terminated.
    returns = compute_lambda_returns(ones, next_values, truncateds, truncateds, 0.5, 0.5, bootstrap_values)
    assert returns.tolist() == [[1 + 0.5 * (0.5 * 2 + 0.5 * 1.0), 1.0, 1 + 0.5 * 20]]


def test_gamma_and_lambda_per_step() -> None:
    gamma, lambda_ = torch.tensor([[0.5, 0.25]]), torch.tensor([[0.25, float("nan")]])
    returns = compute_lambda_returns(torch.ones(1, 2), 4 * torch.ones(1, 2), torch.zeros(1, 2), None, gamma, lambda_)
    assert returns.tolist() == [[1 + 0.5 * (0.75 * 4 + 0.25 * 2.0), 1 + 0.25 * 4]]


def test_time_first_is_the_transpose() -> None:
    torch.manual_seed(0)
    rewards, next_values = torch.randn(3, 7), torch.randn(3, 7)
    flags = torch.rand(3, 7) < 0.2
    row_major = compute_lambda_returns(rewards, next_values, flags)
    assert torch.equal(compute_lambda_returns(rewards.T, next_values.T, flags.T, time_dim=0), row_major.T)
