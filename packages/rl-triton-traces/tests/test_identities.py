"""What holds of eligibility traces whatever the inputs."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_traces import compute_eligibility_traces
from rl_triton_traces.api import KINDS
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def drawn(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, dones and seed_values, in float64."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(rows, steps, generator=generator, dtype=torch.float64)
    dones = torch.rand(rows, steps, generator=generator) < 0.1
    return gradients, dones, torch.randn(rows, generator=generator, dtype=torch.float64)


@given(sizes)
def test_without_decay_traces_are_sums_of_each_episode(size: tuple[int, int, int]) -> None:
    gradients, dones, seed_values = drawn(size)
    expected = torch.empty_like(gradients)
    for row in range(gradients.shape[0]):
        start, before = 0, seed_values[row]
        for end in [*dones[row].nonzero().flatten().tolist(), gradients.shape[1] - 1]:
            expected[row, start : end + 1] = before + gradients[row, start : end + 1].cumsum(0)
            start, before = end + 1, torch.zeros_like(before)
    traces = compute_eligibility_traces(gradients, dones, 1.0, 1.0, seed_values)
    torch.testing.assert_close(traces, expected)


@given(sizes, shares, shares)
def test_traces_weigh_td_errors_as_lambda_returns_do(size: tuple[int, int, int], gamma: float, lambda_: float) -> None:
    """The forward and the backward view: sum of delta * trace is sum of gradient * discounted deltas."""
    gradients, dones, _ = drawn(size)
    deltas = torch.randn(gradients.shape, generator=torch.Generator().manual_seed(size[2]), dtype=torch.float64)
    traces = compute_eligibility_traces(gradients, dones, gamma, lambda_)
    forward, following = torch.empty_like(deltas), torch.zeros_like(deltas[:, 0])
    for t in reversed(range(deltas.shape[1])):
        following = deltas[:, t] + torch.where(dones[:, t], 0.0, gamma * lambda_ * following)
        forward[:, t] = following
    torch.testing.assert_close((deltas * traces).sum(1), (forward * gradients).sum(1))


@given(sizes, shares, st.data())
def test_a_boundary_separates(size: tuple[int, int, int], gamma: float, data: st.DataObject) -> None:
    gradients, dones, seed_values = drawn(size)
    end = data.draw(st.integers(1, gradients.shape[1] - 1))
    dones[:, end - 1] = True
    together = compute_eligibility_traces(gradients, dones, gamma, 0.9, seed_values)
    before = compute_eligibility_traces(gradients[:, :end], dones[:, :end], gamma, 0.9, seed_values)
    after = compute_eligibility_traces(gradients[:, end:], dones[:, end:], gamma, 0.9)
    torch.testing.assert_close(together, torch.cat([before, after], 1))


@given(sizes, shares, st.data())
def test_the_last_trace_seeds_the_next_window(size: tuple[int, int, int], gamma: float, data: st.DataObject) -> None:
    gradients, dones, seed_values = drawn(size)
    end = data.draw(st.integers(1, gradients.shape[1] - 1))
    dones[:, end - 1] = False
    together = compute_eligibility_traces(gradients, dones, gamma, 0.9, seed_values)
    before = compute_eligibility_traces(gradients[:, :end], dones[:, :end], gamma, 0.9, seed_values)
    after = compute_eligibility_traces(gradients[:, end:], dones[:, end:], gamma, 0.9, before[:, -1])
    torch.testing.assert_close(together, torch.cat([before, after], 1))


def sparse(size: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The same with a third of the gradients 1, and 0 elsewhere."""
    gradients, dones, seed_values = drawn(size)
    return (gradients > 0.4).double(), dones, seed_values


@given(sizes, shares)
def test_dutch_traces_lie_between_the_others(size: tuple[int, int, int], gamma: float) -> None:
    """They accumulate with a step size of 0, and replace with one of 1 where features are 0 or 1."""
    gradients, dones, seed_values = sparse(size)
    arguments = (gradients, dones, gamma, 0.9, seed_values)
    accumulating, replacing = (compute_eligibility_traces(*arguments, kind=kind) for kind in KINDS[:2])
    torch.testing.assert_close(compute_eligibility_traces(*arguments, kind="dutch", alpha=0.0), accumulating)
    torch.testing.assert_close(compute_eligibility_traces(*arguments, kind="dutch", alpha=1.0), replacing)
    seeded_above = (gradients, dones, gamma, 0.9, seed_values.abs())
    low, middle, high = (
        compute_eligibility_traces(*seeded_above, kind="dutch", alpha=alpha) for alpha in (1.0, 0.5, 0.0)
    )
    assert (low <= middle).all()
    assert (middle <= high).all()


@given(sizes, shares)
def test_a_replacing_trace_is_an_accumulating_one_that_ends_before_each_visit(
    size: tuple[int, int, int], gamma: float
) -> None:
    gradients, dones, _ = sparse(size)
    ends = dones.clone()
    ends[:, :-1] |= gradients[:, 1:] != 0
    for options in ({}, {"ratios": torch.rand_like(gradients) * 1.5}):
        replacing = compute_eligibility_traces(gradients, dones, gamma, 0.9, kind="replacing", **options)
        torch.testing.assert_close(replacing, compute_eligibility_traces(gradients, ends, gamma, 0.9, **options))


@given(sizes, shares)
def test_ratios_of_one_change_nothing(size: tuple[int, int, int], gamma: float) -> None:
    gradients, dones, seed_values = sparse(size)
    for kind in ("accumulating", "replacing"):
        arguments = (gradients, dones, gamma, 0.9, seed_values)
        expected = compute_eligibility_traces(*arguments, kind=kind)
        ones = torch.ones_like(gradients)
        torch.testing.assert_close(compute_eligibility_traces(*arguments, kind=kind, ratios=ones), expected)
        # One ratio for all steps is a discount, and a factor of what is added.
        halves = compute_eligibility_traces(*arguments, kind=kind, ratios=ones / 2)
        discounted = compute_eligibility_traces(gradients / 2, dones, gamma / 2, 0.9, seed_values, kind=kind)
        torch.testing.assert_close(halves, discounted)


@given(sizes)
def test_ratios_are_right_in_expectation(size: tuple[int, int, int]) -> None:
    """Over both actions of a behaviour policy that chooses either, ratios give the traces of the target policy."""
    gradients, dones, seed_values = drawn(size)
    target = torch.rand(gradients.shape[1], generator=torch.Generator().manual_seed(size[2]), dtype=torch.float64)
    gradients, dones, seed_values = gradients[:1, :8], dones[:1, :8], seed_values[:1]
    steps = gradients.shape[1]
    choices = torch.tensor(list(itertools.product((False, True), repeat=steps)))
    ratios = torch.where(choices, target[:steps], 1 - target[:steps]) / 0.5
    # Actions that change nothing else: each weighted trace has the mean of the one without weights.
    shape = (len(choices), steps)
    traces = compute_eligibility_traces(
        gradients.expand(shape), dones.expand(shape), 0.9, 0.8, seed_values.expand(len(choices)), ratios=ratios
    )
    expected = compute_eligibility_traces(gradients, dones, 0.9, 0.8, seed_values)
    torch.testing.assert_close(traces.mean(0), expected[0])


@given(sizes, st.data())
def test_windows_and_boundaries_of_other_traces(size: tuple[int, int, int], data: st.DataObject) -> None:
    gradients, dones, seed_values = sparse(size)
    end = data.draw(st.integers(1, gradients.shape[1] - 1))
    ratios = torch.rand(gradients.shape, generator=torch.Generator().manual_seed(size[2]), dtype=torch.float64) * 2
    options: dict[str, Any]
    for options in ({"ratios": ratios}, {"kind": "replacing", "ratios": ratios}, {"kind": "dutch", "alpha": 0.4}):
        for ended in (False, True):
            dones[:, end - 1] = ended
            together = compute_eligibility_traces(gradients, dones, 0.9, 0.9, seed_values, **options)
            halves = []
            seed: Tensor | None = seed_values
            for part in (slice(None, end), slice(end, None)):
                cut_out = {name: x[:, part] if isinstance(x, Tensor) else x for name, x in options.items()}
                halves.append(compute_eligibility_traces(gradients[:, part], dones[:, part], 0.9, 0.9, seed, **cut_out))
                seed = None if ended else halves[0][:, -1]
            torch.testing.assert_close(together, torch.cat(halves, 1))


@given(sizes)
def test_the_last_flag_is_not_read(size: tuple[int, int, int]) -> None:
    gradients, dones, seed_values = drawn(size)
    traces = compute_eligibility_traces(gradients, dones, 0.9, 0.9, seed_values)
    dones[:, -1] = ~dones[:, -1]
    assert torch.equal(compute_eligibility_traces(gradients, dones, 0.9, 0.9, seed_values), traces)


@given(sizes)
def test_rows_are_independent(size: tuple[int, int, int]) -> None:
    gradients, dones, seed_values = drawn(size)
    order = torch.randperm(gradients.shape[0], generator=torch.Generator().manual_seed(size[2]))
    straight = compute_eligibility_traces(gradients, dones, 0.9, 0.9, seed_values)
    shuffled = compute_eligibility_traces(gradients[order], dones[order], 0.9, 0.9, seed_values[order])
    torch.testing.assert_close(shuffled, straight[order])


@given(sizes)
def test_time_major_is_env_major(size: tuple[int, int, int]) -> None:
    gradients, dones, seed_values = drawn(size)
    straight = compute_eligibility_traces(gradients, dones, 0.9, 0.9, seed_values)
    for x, flags in ((gradients.t(), dones.t()), (gradients.t().contiguous(), dones.t().contiguous())):
        turned = compute_eligibility_traces(x, flags, 0.9, 0.9, seed_values, time_dim=0)
        torch.testing.assert_close(turned.t(), straight)
