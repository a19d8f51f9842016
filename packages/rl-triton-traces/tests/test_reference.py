"""The oracle against worked values, and against what the book's equations come to, term by term."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

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


def test_replacing_by_hand() -> None:
    gradients = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0, -0.0, 2.0]])
    dones = torch.tensor([[0, 0, 0, 0, 1, 0, 0]])
    traces = compute_eligibility_traces(gradients, dones, 1.0, 0.5, torch.tensor([8.0]), kind="replacing")
    assert traces.tolist() == [[4.0, 1.0, 0.5, 1.0, 0.5, 0.0, 2.0]]
    # Whatever is not 0, and NaN is not, replaces.
    gradients = torch.tensor([[4.0, -1.0, 0.0, math.nan, 0.0]])
    traces = compute_eligibility_traces(gradients, torch.zeros(1, 5), 1.0, 0.5, kind="replacing")
    torch.testing.assert_close(traces.float(), torch.tensor([[4.0, -1.0, -0.5, math.nan, math.nan]]), equal_nan=True)
    # What is not 0 in the first step hides the seed.
    gradients, dones = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2)
    traces = compute_eligibility_traces(gradients, dones, 1.0, 0.5, torch.tensor([8.0]), kind="replacing")
    assert traces.tolist() == [[1.0, 0.5]]


def test_dutch_is_equation_12_11_for_one_hot_features() -> None:
    """The equation itself takes the inner product of the trace with all features, and adds all of them that often."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(0, 3, (12,), generator=generator)
    features = torch.nn.functional.one_hot(states, 3).double().unsqueeze(0)
    gamma, lambda_, alpha = 0.9, 0.8, 0.3
    z, expected = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), []
    seed = z.unsqueeze(0)
    for x in features[0]:
        z = gamma * lambda_ * z + (1 - alpha * gamma * lambda_ * (z @ x)) * x
        expected.append(z)
    dones = torch.zeros_like(features)
    traces = compute_eligibility_traces(features, dones, gamma, lambda_, seed, kind="dutch", alpha=alpha)
    torch.testing.assert_close(traces[0], torch.stack(expected))


def test_equation_12_25_as_a_sum() -> None:
    """A step's gradient has been weighed by its own ratio and all later ones."""
    torch.manual_seed(0)
    gradients, ratios = torch.randn(1, 6, dtype=torch.float64), torch.rand(1, 6, dtype=torch.float64) * 2
    seed, decay = torch.randn(1, dtype=torch.float64), 0.9 * 0.8
    expected = [
        sum(decay ** (t - k) * ratios[0, k : t + 1].prod() * gradients[0, k] for k in range(t + 1))
        + decay ** (t + 1) * ratios[0, : t + 1].prod() * seed[0]
        for t in range(6)
    ]
    traces = compute_eligibility_traces(gradients, torch.zeros(1, 6), 0.9, 0.8, seed, ratios=ratios)
    torch.testing.assert_close(traces[0], torch.stack([torch.as_tensor(x) for x in expected]))


def test_ratios_of_replacing_traces_by_hand() -> None:
    gradients, dones = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0, 0.0]]), torch.tensor([[0, 0, 0, 0, 1, 0]])
    ratios = torch.tensor([[0.5, 2.0, 4.0, 3.0, 0.0, 1.0]])
    options = {"kind": "replacing", "ratios": ratios}
    traces = compute_eligibility_traces(gradients, dones, 1.0, 0.5, torch.tensor([8.0]), **options)
    assert traces.tolist() == [[2.0, 2.0, 4.0, 6.0, 0.0, 0.0]]


def test_nothing_before_a_replaced_entry_is_read() -> None:
    nan = math.nan
    gradients = torch.tensor([[nan, 0.0, 1.0, 0.0, math.inf, 0.0, 1.0]])
    traces = compute_eligibility_traces(gradients, torch.zeros(1, 7), 1.0, 0.5, torch.tensor([nan]), kind="replacing")
    torch.testing.assert_close(
        traces.float(), torch.tensor([[nan, nan, 1, 0.5, math.inf, math.inf, 1]]), equal_nan=True
    )


@pytest.mark.parametrize("options", [{}, {"kind": "dutch", "alpha": 0.5}, {"ratios": torch.ones(1, 6)}], ids=str)
def test_nan_stays_in_its_episode(options: dict[str, Any]) -> None:
    nan = math.nan
    gradients = torch.tensor([[1.0, nan, 1.0, 1.0, nan, 1.0]])
    traces = compute_eligibility_traces(gradients, torch.tensor([[0, 0, 1, 0, 0, 0]]), 0.5, 1.0, **options)
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
