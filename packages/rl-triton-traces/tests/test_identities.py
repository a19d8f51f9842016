"""What holds of eligibility traces whatever the inputs."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_traces import compute_eligibility_traces
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
