"""What holds of group advantages whatever the inputs, and the plain code of trainers that they take the place of."""

from __future__ import annotations

import collections
import statistics
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_returns import compute_group_advantages
from torch import Tensor

sizes = st.tuples(st.integers(1, 8), st.integers(2, 9), st.integers(0, 2**31))
options = st.fixed_dictionaries(
    {
        "baseline": st.sampled_from(["mean", "leave_one_out"]),
        "scale": st.sampled_from(["std", None]),
        "unbiased": st.booleans(),
    }
)


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Rewards of a number of prompts, with as many samples each, in float64; and a random order of them all."""
    prompts, samples, seed = size
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(prompts, samples, generator=generator, dtype=torch.float64)
    return rewards, torch.randperm(prompts * samples, generator=generator)


def ids_of(rewards: Tensor) -> Tensor:
    return torch.arange(rewards.shape[0]).unsqueeze(-1).expand_as(rewards)


@given(sizes)
def test_grpo_as_trainers_write_it(size: tuple[int, int, int]) -> None:
    rewards = drawn(size)[0]
    samples = rewards.shape[1]
    # Group statistics, repeated for every sample of a flat batch.
    mean, std = (x.repeat_interleave(samples) for x in (rewards.mean(dim=1), rewards.std(dim=1)))
    expected = (rewards.view(-1) - mean) / (std + 1e-4)
    torch.testing.assert_close(compute_group_advantages(rewards, eps=1e-4).view(-1), expected)
    torch.testing.assert_close(compute_group_advantages(rewards, scale=None).view(-1), rewards.view(-1) - mean)


@given(sizes)
def test_grpo_by_a_dictionary_of_prompts(size: tuple[int, int, int]) -> None:
    rewards, order = drawn(size)
    flat, ids = rewards.view(-1)[order], ids_of(rewards).reshape(-1)[order]
    by_prompt = collections.defaultdict(list)
    for id_, reward in zip(ids.tolist(), flat.tolist(), strict=True):
        by_prompt[id_].append(reward)
    expected = [
        (reward - statistics.mean(by_prompt[id_])) / (statistics.stdev(by_prompt[id_]) + 1e-6)
        for id_, reward in zip(ids.tolist(), flat.tolist(), strict=True)
    ]
    tokens = torch.rand(len(order), 5, generator=torch.Generator().manual_seed(0)) < 0.5
    spread = torch.tensor(expected, dtype=torch.float64).unsqueeze(-1) * tokens
    torch.testing.assert_close(compute_group_advantages(flat, ids, tokens), spread)


@given(sizes)
def test_rloo_as_trainers_write_it(size: tuple[int, int, int]) -> None:
    rewards = drawn(size)[0]
    samples = rewards.shape[1]
    baseline = (rewards.sum(1, keepdim=True) - rewards) / (samples - 1)
    actual = compute_group_advantages(rewards, baseline="leave_one_out", scale=None)
    torch.testing.assert_close(actual, rewards - baseline)


@given(sizes, options)
def test_rows_are_what_ids_say(size: tuple[int, int, int], options: dict[str, Any]) -> None:
    rewards, order = drawn(size)
    expected = compute_group_advantages(rewards, **options)
    torch.testing.assert_close(compute_group_advantages(rewards, ids_of(rewards), **options), expected)
    flat, ids = rewards.view(-1)[order], ids_of(rewards).reshape(-1)[order]
    torch.testing.assert_close(compute_group_advantages(flat, ids * -7 + 3, **options), expected.view(-1)[order])


@given(sizes, options)
def test_a_group_adds_up_to_zero(size: tuple[int, int, int], options: dict[str, Any]) -> None:
    sums = compute_group_advantages(drawn(size)[0], **options).sum(1)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0.0, atol=1e-12)


@given(sizes)
def test_with_the_default_a_group_has_variance_one(size: tuple[int, int, int]) -> None:
    stds = compute_group_advantages(drawn(size)[0], eps=0.0).std(1)
    torch.testing.assert_close(stds, torch.ones_like(stds))


@given(sizes, options)
def test_a_shift_changes_nothing_and_a_scale_cancels(size: tuple[int, int, int], options: dict[str, Any]) -> None:
    rewards = drawn(size)[0]
    plain = compute_group_advantages(rewards, eps=0.0, **options)
    torch.testing.assert_close(compute_group_advantages(rewards + 3, eps=0.0, **options), plain, rtol=1e-9, atol=1e-9)
    doubled = compute_group_advantages(rewards * 2, eps=0.0, **options)
    torch.testing.assert_close(doubled, plain * (2 if options["scale"] is None else 1))


@given(sizes)
def test_leaving_one_out_is_the_mean_times_n_over_n_minus_one(size: tuple[int, int, int]) -> None:
    rewards = drawn(size)[0]
    samples = rewards.shape[1]
    left_out = compute_group_advantages(rewards, baseline="leave_one_out", scale=None)
    torch.testing.assert_close(left_out, compute_group_advantages(rewards, scale=None) * samples / (samples - 1))


@given(sizes, options)
def test_a_mask_of_responses_is_a_batch_without_them(size: tuple[int, int, int], options: dict[str, Any]) -> None:
    rewards, order = drawn(size)
    flat, ids = rewards.view(-1), ids_of(rewards).reshape(-1)
    kept = order % 3 != 0
    actual = compute_group_advantages(torch.where(kept, flat, torch.nan), ids, kept, **options)
    torch.testing.assert_close(actual[kept], compute_group_advantages(flat[kept], ids[kept], **options))
    assert (actual[~kept] == 0).all()
