"""The oracle against worked values, and against equation 16 summed out term by term."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_gae.reference import compute_gae

CASES = load_cases(Path(__file__).parent / "cases" / "compute_gae.json")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    advantages = compute_gae(**case.inputs, **case.params)
    torch.testing.assert_close(advantages, case.expected["advantages"], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_equation_16_as_a_sum() -> None:
    torch.manual_seed(0)
    rewards, values = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
    last_value = torch.randn(1, dtype=torch.float64)
    gamma, lambda_ = 0.9, 0.8
    following = torch.cat([values[:, 1:], last_value[:, None]], 1)
    deltas = rewards + gamma * following - values
    expected = [sum((gamma * lambda_) ** k * deltas[0, t + k] for k in range(6 - t)) for t in range(6)]
    advantages = compute_gae(rewards, values, torch.zeros(1, 6), None, gamma, lambda_, last_value=last_value)
    torch.testing.assert_close(advantages[0], torch.stack([torch.as_tensor(x) for x in expected]))


def test_one_step_of_each_kind_by_hand() -> None:
    ones = torch.ones(1, 3)
    # The second step is truncated, and continues with its own bootstrap value of 10; the last one with 20.
    bootstrap_values = torch.tensor([[7.0, 10.0, 20.0]])
    advantages = compute_gae(
        ones, 2 * ones, torch.zeros(1, 3), torch.tensor([[0, 1, 0]]), 0.5, 0.5, bootstrap_values=bootstrap_values
    )
    assert advantages.tolist() == [[1 + 0.5 * 2 - 2 + 0.25 * 4.0, 1 + 0.5 * 10 - 2, 1 + 0.5 * 20 - 2]]
    # Truncated with nothing to continue with; the last value serves the last column, truncated or not.
    advantages = compute_gae(
        ones, 2 * ones, torch.zeros(1, 3), torch.tensor([[0, 1, 1]]), 0.5, 0.5, last_value=torch.tensor([20.0])
    )
    assert advantages.tolist() == [[1 + 0.5 * 2 - 2 + 0.25 * -1.0, 1 - 2, 1 + 0.5 * 20 - 2]]


def test_gamma_and_lambda_per_step() -> None:
    gamma, lambda_ = torch.tensor([[0.5, 0.25]]), torch.tensor([[0.5, float("nan")]])
    advantages = compute_gae(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), None, gamma, lambda_)
    assert advantages.tolist() == [[1.25, 1.0]]


def test_flags_at_starts_by_hand() -> None:
    ones = torch.ones(1, 4)
    # The flag at t = 0 says nothing of this window; the second step terminated, the last one was truncated.
    advantages = compute_gae(
        *(ones, 2 * ones, torch.tensor([[1, 0, 1, 0]]), torch.zeros(1, 4), 0.5, 0.5),
        last_value=torch.tensor([20.0]),
        boundary="starts_at",
        next_start=(torch.tensor([0]), torch.tensor([1])),
    )
    last = 1 + 0.5 * 20 - 2
    assert advantages.tolist() == [[1 + 0.5 * 2 - 2 + 0.25 * -1.0, 1 - 2, 1 + 0.5 * 2 - 2 + 0.25 * last, last]]
    # Without flags of step T the last step ended nothing; with one that terminated, nothing follows it.
    for next_start, expected in ((None, last), (torch.tensor([2.0]), 1.0 - 2.0)):
        advantages = compute_gae(
            *(ones, 2 * ones, torch.zeros(1, 4), None, 0.5, 0.5),
            last_value=torch.tensor([20.0]),
            boundary="starts_at",
            next_start=next_start,
        )
        assert advantages[0, -1] == expected


def test_time_first_is_the_transpose() -> None:
    torch.manual_seed(0)
    rewards, values, last_value = torch.randn(3, 7), torch.randn(3, 7), torch.randn(3)
    flags = torch.rand(3, 7) < 0.2
    row_major = compute_gae(rewards, values, flags, last_value=last_value)
    assert torch.equal(compute_gae(rewards.T, values.T, flags.T, last_value=last_value, time_dim=0), row_major.T)
