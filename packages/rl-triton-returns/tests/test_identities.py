"""What holds of discounted returns whatever the inputs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_returns import compute_discounted_returns
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, terminateds, truncateds and bootstrap_values, in float64."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)
    rewards, bootstrap_values = (torch.randn(rows, steps, generator=generator, dtype=torch.float64) for _ in range(2))
    terminateds, truncateds = (torch.rand(rows, steps, generator=generator) < 0.1 for _ in range(2))
    return rewards, terminateds, truncateds, bootstrap_values


@given(sizes, shares)
def test_it_is_the_discounted_sum_up_to_the_end_of_the_episode(size: tuple[int, int, int], gamma: float) -> None:
    rewards, terminateds, truncateds, bootstrap_values = drawn(size)
    steps = rewards.shape[1]
    expected = torch.zeros_like(rewards)
    for row in range(rewards.shape[0]):
        for t in range(steps):
            end = t
            while end < steps - 1 and not terminateds[row, end] and not truncateds[row, end]:
                end += 1
            powers = gamma ** torch.arange(end - t + 2, dtype=torch.float64)
            after = 0.0 * rewards[row, end] if terminateds[row, end] else bootstrap_values[row, end]
            expected[row, t] = powers @ torch.cat([rewards[row, t : end + 1], after[None]])
    actual = compute_discounted_returns(rewards, terminateds, truncateds, gamma, bootstrap_values)
    torch.testing.assert_close(actual, expected)


@given(sizes)
def test_gamma_zero_is_the_reward(size: tuple[int, int, int]) -> None:
    rewards, terminateds, truncateds, bootstrap_values = drawn(size)
    torch.testing.assert_close(
        compute_discounted_returns(rewards, terminateds, truncateds, 0.0, bootstrap_values), rewards
    )


@given(sizes)
def test_gamma_one_is_a_sum_from_the_end(size: tuple[int, int, int]) -> None:
    rewards = drawn(size)[0]
    actual = compute_discounted_returns(rewards, torch.zeros_like(rewards), gamma=1.0)
    torch.testing.assert_close(actual, rewards.flip(1).cumsum(1).flip(1))


@given(sizes, shares)
def test_it_is_linear_in_rewards_and_bootstrap_values(size: tuple[int, int, int], gamma: float) -> None:
    rewards, terminateds, truncateds, bootstrap_values = drawn(size)
    nothing = torch.zeros_like(rewards)

    def compute(rewards: Tensor, bootstrap_values: Tensor) -> Tensor:
        return compute_discounted_returns(rewards, terminateds, truncateds, gamma, bootstrap_values)

    apart = compute(rewards, nothing) + 2 * compute(nothing, bootstrap_values)
    torch.testing.assert_close(compute(rewards, 2 * bootstrap_values), apart)


@given(sizes, shares)
def test_last_value_is_a_bootstrap_value_of_the_last_column(size: tuple[int, int, int], gamma: float) -> None:
    rewards, terminateds, _, bootstrap_values = drawn(size)
    by_row = compute_discounted_returns(rewards, terminateds, gamma=gamma, last_value=bootstrap_values[:, -1])
    by_step = compute_discounted_returns(rewards, terminateds, gamma=gamma, bootstrap_values=bootstrap_values)
    torch.testing.assert_close(by_row, by_step)


@given(sizes, st.booleans(), st.data())
def test_a_boundary_separates(size: tuple[int, int, int], truncated: bool, data: st.DataObject) -> None:
    rewards, terminateds, truncateds, bootstrap_values = drawn(size)
    end = data.draw(st.integers(1, rewards.shape[1] - 1))
    (truncateds if truncated else terminateds)[:, end - 1] = True

    def compute(part: slice) -> Tensor:
        flags = (terminateds[:, part], truncateds[:, part])
        return compute_discounted_returns(rewards[:, part], *flags, bootstrap_values=bootstrap_values[:, part])

    torch.testing.assert_close(compute(slice(None)), torch.cat([compute(slice(end)), compute(slice(end, None))], 1))


@given(sizes, shares, st.data())
def test_a_window_continues_with_the_return_after_it(
    size: tuple[int, int, int], gamma: float, data: st.DataObject
) -> None:
    rewards, terminateds, _, _ = drawn(size)
    end = data.draw(st.integers(1, rewards.shape[1] - 1))
    whole = compute_discounted_returns(rewards, terminateds, gamma=gamma)
    window = compute_discounted_returns(
        rewards[:, :end], terminateds[:, :end], gamma=gamma, last_value=whole[:, end].contiguous()
    )
    torch.testing.assert_close(window, whole[:, :end])


@given(sizes)
def test_rows_are_independent(size: tuple[int, int, int]) -> None:
    rewards, terminateds, _, bootstrap_values = drawn(size)
    last_value = bootstrap_values[:, -1]
    order = torch.randperm(rewards.shape[0], generator=torch.Generator().manual_seed(size[2]))
    straight = compute_discounted_returns(rewards, terminateds, last_value=last_value)
    shuffled = compute_discounted_returns(rewards[order], terminateds[order], last_value=last_value[order])
    torch.testing.assert_close(shuffled, straight[order])


@given(sizes)
def test_time_major_is_env_major(size: tuple[int, int, int]) -> None:
    buffers = drawn(size)
    straight = compute_discounted_returns(*buffers[:3], bootstrap_values=buffers[3])
    for turned in ([x.t() for x in buffers], [x.t().contiguous() for x in buffers]):
        actual = compute_discounted_returns(*turned[:3], bootstrap_values=turned[3], time_dim=0)
        torch.testing.assert_close(actual.t(), straight)
