"""What holds of GAE whatever the inputs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_gae import compute_gae
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values, terminateds and last_value, in float64."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(rows, steps, generator=generator, dtype=torch.float64) for _ in range(2))
    terminateds = torch.rand(rows, steps, generator=generator) < 0.1
    return rewards, values, terminateds, torch.randn(rows, generator=generator, dtype=torch.float64)


@given(sizes, shares)
def test_lambda_one_is_return_minus_value(size: tuple[int, int, int], gamma: float) -> None:
    rewards, values, terminateds, last_value = drawn(size)
    returns, following = torch.empty_like(rewards), last_value
    for t in reversed(range(rewards.shape[1])):
        following = rewards[:, t] + torch.where(terminateds[:, t], 0.0, gamma * following)
        returns[:, t] = following
    actual = compute_gae(rewards, values, terminateds, gamma=gamma, lambda_=1.0, last_value=last_value)
    torch.testing.assert_close(actual, returns - values)


@given(sizes, shares, shares)
def test_advantage_plus_value_is_the_lambda_return(size: tuple[int, int, int], gamma: float, lambda_: float) -> None:
    rewards, values, terminateds, last_value = drawn(size)
    next_values = torch.cat([values[:, 1:], last_value[:, None]], 1)
    returns, following = torch.empty_like(rewards), last_value
    for t in reversed(range(rewards.shape[1])):
        mixed = (1 - lambda_) * next_values[:, t] + lambda_ * following
        following = rewards[:, t] + torch.where(terminateds[:, t], 0.0, gamma * mixed)
        returns[:, t] = following
    actual = compute_gae(rewards, values, terminateds, gamma=gamma, lambda_=lambda_, next_values=next_values)
    torch.testing.assert_close(actual + values, returns)


@given(sizes, st.data())
def test_a_boundary_separates(size: tuple[int, int, int], data: st.DataObject) -> None:
    rewards, values, terminateds, last_value = drawn(size)
    end = data.draw(st.integers(1, rewards.shape[1] - 1))
    terminateds[:, end - 1] = True
    together = compute_gae(rewards, values, terminateds, last_value=last_value)
    before = compute_gae(rewards[:, :end], values[:, :end], terminateds[:, :end])
    after = compute_gae(rewards[:, end:], values[:, end:], terminateds[:, end:], last_value=last_value)
    torch.testing.assert_close(together, torch.cat([before, after], 1))


@given(sizes)
def test_rows_are_independent(size: tuple[int, int, int]) -> None:
    rewards, values, terminateds, last_value = drawn(size)
    order = torch.randperm(rewards.shape[0], generator=torch.Generator().manual_seed(size[2]))
    straight = compute_gae(rewards, values, terminateds, last_value=last_value)
    shuffled = compute_gae(rewards[order], values[order], terminateds[order], last_value=last_value[order])
    torch.testing.assert_close(shuffled, straight[order])


@given(sizes)
def test_time_major_is_env_major(size: tuple[int, int, int]) -> None:
    rewards, values, terminateds, last_value = drawn(size)
    straight = compute_gae(rewards, values, terminateds, last_value=last_value)
    for buffers in (
        (rewards.t(), values.t(), terminateds.t()),
        [x.t().contiguous() for x in (rewards, values, terminateds)],
    ):
        turned = compute_gae(*buffers, last_value=last_value, time_dim=0)
        torch.testing.assert_close(turned.t(), straight)
