"""What holds of lambda-returns whatever the inputs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_lambda import compute_lambda_returns
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, next_values and terminateds, in float64."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)
    rewards, next_values = (torch.randn(rows, steps, generator=generator, dtype=torch.float64) for _ in range(2))
    return rewards, next_values, torch.rand(rows, steps, generator=generator) < 0.1


def truncations(size: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Truncateds and bootstrap_values to go with them."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed + 1)
    truncateds = torch.rand(rows, steps, generator=generator) < 0.1
    return truncateds, torch.randn(rows, steps, generator=generator, dtype=torch.float64)


def discounted_returns(rewards: Tensor, terminateds: Tensor, truncateds: Tensor, after: Tensor, gamma: float) -> Tensor:
    """Discounted returns that continue with `after` where a step is truncated, and in the last column."""
    returns, following = torch.empty_like(rewards), after[:, -1]
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(truncateds[:, t], after[:, t], following)
        following = rewards[:, t] + torch.where(terminateds[:, t], 0.0, gamma * following)
        returns[:, t] = following
    return returns


@given(sizes, shares, shares)
def test_return_minus_value_is_the_sum_of_errors(size: tuple[int, int, int], gamma: float, lambda_: float) -> None:
    rewards, next_values, terminateds = drawn(size)
    values = torch.cat([torch.zeros_like(next_values[:, :1]), next_values[:, :-1]], 1)
    errors = rewards + torch.where(terminateds, 0.0, gamma * next_values) - values
    advantages = torch.empty_like(errors)
    for t in range(errors.shape[1]):
        weight, total = torch.ones_like(errors[:, 0]), torch.zeros_like(errors[:, 0])
        for k in range(t, errors.shape[1]):
            total = total + weight * errors[:, k]
            weight = torch.where(terminateds[:, k], 0.0, gamma * lambda_ * weight)
        advantages[:, t] = total
    returns = compute_lambda_returns(rewards, next_values, terminateds, gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(returns - values, advantages)


@given(sizes, shares)
def test_lambda_one_is_the_discounted_return(size: tuple[int, int, int], gamma: float) -> None:
    rewards, next_values, terminateds = drawn(size)
    truncateds, bootstrap_values = truncations(size)
    for after, given_values in ((next_values, None), (bootstrap_values, bootstrap_values)):
        expected = discounted_returns(rewards, terminateds, truncateds, after, gamma)
        actual = compute_lambda_returns(rewards, next_values, terminateds, truncateds, gamma, 1.0, given_values)
        torch.testing.assert_close(actual, expected)


@given(sizes, shares)
def test_lambda_zero_is_the_one_step_target(size: tuple[int, int, int], gamma: float) -> None:
    rewards, next_values, terminateds = drawn(size)
    truncateds, bootstrap_values = truncations(size)
    expected = rewards + torch.where(terminateds, 0.0, gamma * next_values)
    actual = compute_lambda_returns(rewards, next_values, terminateds, truncateds, gamma, 0.0)
    torch.testing.assert_close(actual, expected)
    truncateds[:, -1] = True
    after = torch.where(truncateds, bootstrap_values, next_values)
    expected = rewards + torch.where(terminateds, 0.0, gamma * after)
    actual = compute_lambda_returns(rewards, next_values, terminateds, truncateds, gamma, 0.0, bootstrap_values)
    torch.testing.assert_close(actual, expected)


@given(sizes, shares, shares)
def test_exact_values_leave_nothing_to_lambda(size: tuple[int, int, int], gamma: float, lambda_: float) -> None:
    rewards, next_values, terminateds = drawn(size)
    no_truncateds = torch.zeros_like(terminateds)
    returns = discounted_returns(rewards, terminateds, no_truncateds, next_values, gamma)
    exact = torch.cat([returns[:, 1:], next_values[:, -1:]], 1)
    actual = compute_lambda_returns(rewards, exact, terminateds, gamma=gamma, lambda_=lambda_)
    torch.testing.assert_close(actual, returns)


@given(sizes, st.booleans(), st.data())
def test_a_boundary_separates(size: tuple[int, int, int], truncated: bool, data: st.DataObject) -> None:
    rewards, next_values, terminateds = drawn(size)
    truncateds, bootstrap_values = truncations(size)
    end = data.draw(st.integers(1, rewards.shape[1] - 1))
    (truncateds if truncated else terminateds)[:, end - 1] = True
    per_step = (rewards, next_values, terminateds, truncateds, bootstrap_values)

    def compute(part: slice) -> Tensor:
        *flags_and_numbers, after = (x[:, part] for x in per_step)
        return compute_lambda_returns(*flags_and_numbers, bootstrap_values=after)

    torch.testing.assert_close(compute(slice(None)), torch.cat([compute(slice(end)), compute(slice(end, None))], 1))


@given(sizes)
def test_rows_are_independent(size: tuple[int, int, int]) -> None:
    rewards, next_values, terminateds = drawn(size)
    order = torch.randperm(rewards.shape[0], generator=torch.Generator().manual_seed(size[2]))
    straight = compute_lambda_returns(rewards, next_values, terminateds)
    shuffled = compute_lambda_returns(rewards[order], next_values[order], terminateds[order])
    torch.testing.assert_close(shuffled, straight[order])


@given(sizes)
def test_time_major_is_env_major(size: tuple[int, int, int]) -> None:
    buffers = drawn(size)
    straight = compute_lambda_returns(*buffers)
    for turned in ([x.t() for x in buffers], [x.t().contiguous() for x in buffers]):
        torch.testing.assert_close(compute_lambda_returns(*turned, time_dim=0).t(), straight)
