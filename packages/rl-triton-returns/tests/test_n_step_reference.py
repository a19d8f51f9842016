"""The oracle of n-step returns against sums written out, and numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rl_triton_returns.reference import compute_discounted_returns, compute_n_step_returns


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 9])
def test_equation_7_1_as_a_sum(n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(1, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    last_value = torch.randn(1, generator=generator, dtype=torch.float64)
    following = [*values[0].tolist(), last_value.item()]
    expected = []
    for t in range(6):
        m = min(n, 6 - t)
        expected.append(sum(0.9**k * rewards[0, t + k].item() for k in range(m)) + 0.9**m * following[t + m])
    actual = compute_n_step_returns(rewards, values, torch.zeros(1, 6), None, 0.9, n, last_value=last_value)
    torch.testing.assert_close(actual[0], torch.tensor(expected, dtype=torch.float64))


def by_hand(**changes: Any) -> list[float]:
    """Five rewards of 1, values of 8 with gamma 0.5, two steps."""
    good: dict[str, Any] = {"rewards": torch.ones(1, 5), "values": torch.full((1, 5), 8.0)}
    good |= {"terminateds": torch.zeros(1, 5), "gamma": 0.5, "n": 2}
    return [float(x) for x in compute_n_step_returns(**(good | changes))[0]]


def test_one_step_of_each_kind_by_hand() -> None:
    # Two rewards and a quarter of 8; then 1 + 0.5 * 1, and the last reward alone: nothing is known of what follows.
    assert by_hand() == [3.5, 3.5, 3.5, 1.5, 1.0]
    assert by_hand(last_value=torch.tensor([16.0])) == [3.5, 3.5, 3.5, 5.5, 9.0]
    middle = torch.tensor([[0, 0, 1, 0, 0]])
    assert by_hand(terminateds=middle) == [3.5, 1.5, 1.0, 1.5, 1.0]
    nan = math.nan
    bootstrap_values = torch.tensor([[nan, nan, 4.0, nan, 16.0]])
    expected = [3.5, 1 + 0.5 + 0.25 * 4, 1 + 0.5 * 4, 5.5, 9.0]
    assert by_hand(truncateds=middle, bootstrap_values=bootstrap_values) == expected
    # Termination wins; truncated with nothing to continue with, 0.
    assert by_hand(terminateds=middle, truncateds=middle, bootstrap_values=bootstrap_values)[:3] == [3.5, 1.5, 1.0]
    assert by_hand(truncateds=middle, last_value=torch.tensor([16.0])) == [3.5, 1.5, 1.0, 5.5, 9.0]
    # Next values serve the inside, truncations and the last column.
    next_values = torch.tensor([[2.0, 4.0, 6.0, 8.0, 10.0]])
    expected = [1 + 0.5 + 0.25 * 4, 1 + 0.5 + 0.25 * 6, 1 + 0.5 * 6, 1 + 0.5 + 0.25 * 10, 6.0]
    assert by_hand(values=None, next_values=next_values, truncateds=middle) == expected


def test_values_that_are_not_two_steps_ahead_are_not_read() -> None:
    values = torch.tensor([[math.nan, math.nan, 8.0, math.nan, 8.0]])
    ends = torch.tensor([[0, 0, 1, 0, 0]])
    # Step 1 ends two steps on, where it would have read the NaN.
    assert by_hand(values=values, terminateds=ends) == [3.5, 1.5, 1.0, 1.5, 1.0]


def test_gamma_per_step() -> None:
    gamma = torch.tensor([[0.5, 0.25, math.nan, 1.0, 0.5]])
    ends = torch.tensor([[0, 0, 1, 0, 0]])
    assert by_hand(gamma=gamma, terminateds=ends) == [1 + 0.5 + 0.125 * 8, 1.25, 1.0, 2.0, 1.0]


def test_many_steps_are_the_discounted_return() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(3, 7, generator=generator) for _ in range(2))
    flags = {name: torch.rand(3, 7, generator=generator) < 0.2 for name in ("terminateds", "truncateds")}
    for n in (7, 100):
        actual = compute_n_step_returns(rewards, values, **flags, n=n, bootstrap_values=values)
        assert torch.equal(actual, compute_discounted_returns(rewards, **flags, bootstrap_values=values))


def test_time_first_is_the_transpose() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(3, 7, generator=generator) for _ in range(2))
    flags = torch.rand(3, 7, generator=generator) < 0.2
    straight = compute_n_step_returns(rewards, values, flags, n=3)
    assert torch.equal(compute_n_step_returns(rewards.T, values.T, flags.T, n=3, time_dim=0).T, straight)
