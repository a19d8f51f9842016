"""The oracle against worked values, and against equation 12.5 summed out term by term."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_traces.reference import compute_eligibility_traces

CASES = load_cases(Path(__file__).parent / "cases" / "compute_eligibility_traces.json")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    traces = compute_eligibility_traces(**case.inputs, **case.params)
    torch.testing.assert_close(traces, case.expected["traces"], rtol=1e-12, atol=1e-12, equal_nan=True)


def test_equation_12_5_as_a_sum() -> None:
    torch.manual_seed(0)
    gradients, seed = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    decay = 0.9 * 0.8
    expected = [
        sum(decay ** (t - k) * gradients[0, k] for k in range(t + 1)) + decay ** (t + 1) * seed[0] for t in range(6)
    ]
    traces = compute_eligibility_traces(gradients, torch.zeros(1, 6), 0.9, 0.8, seed)
    torch.testing.assert_close(traces[0], torch.stack([torch.as_tensor(x) for x in expected]))


def test_an_ended_step_by_hand() -> None:
    gradients, dones = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[1, 0, 1, 0]])
    # A flag at the first step does not hide the seed from it, but ends the trace there.
    traces = compute_eligibility_traces(gradients, dones, 1.0, 0.5, torch.tensor([8.0]))
    assert traces.tolist() == [[1 + 0.5 * 8, 2.0, 3 + 0.5 * 2, 4.0]]


def test_nan_stays_in_its_episode() -> None:
    nan = math.nan
    gradients = torch.tensor([[1.0, nan, 1.0, 1.0, nan, 1.0]])
    traces = compute_eligibility_traces(gradients, torch.tensor([[0, 0, 1, 0, 0, 0]]), 0.5, 1.0)
    assert traces.isnan().tolist() == [[False, True, True, False, True, True]]
    assert traces[0, 3] == 1.0
    traces = compute_eligibility_traces(torch.ones(1, 2), torch.tensor([[1, 0]]), 0.5, 1.0, torch.tensor([nan]))
    assert traces.isnan().tolist() == [[True, False]]


def test_time_first_is_the_transpose() -> None:
    torch.manual_seed(0)
    gradients, seed = torch.randn(3, 7), torch.randn(3)
    dones = torch.rand(3, 7) < 0.2
    row_major = compute_eligibility_traces(gradients, dones, 0.9, 0.8, seed)
    assert torch.equal(compute_eligibility_traces(gradients.T, dones.T, 0.9, 0.8, seed, time_dim=0), row_major.T)


def test_empty() -> None:
    for shape in ((0, 5), (3, 0)):
        assert compute_eligibility_traces(torch.ones(shape), torch.ones(shape), 0.9, 0.8).shape == shape
