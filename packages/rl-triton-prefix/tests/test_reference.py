"""The oracle against worked values, and against sums written out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_prefix.reference import compute_episodic_prefix_sum

CASES = load_cases(Path(__file__).parent / "cases" / "compute_episodic_prefix_sum.json")
BOTH = pytest.mark.parametrize("boundary", ["ends_at", "starts_at"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    prefix_sums = compute_episodic_prefix_sum(**case.inputs, **case.params)
    torch.testing.assert_close(prefix_sums, case.expected["prefix_sums"], rtol=1e-12, atol=1e-12, equal_nan=True)


@BOTH
def test_without_a_boundary_it_is_the_sum_of_all_steps(boundary: str) -> None:
    torch.manual_seed(0)
    inputs, seed = torch.randn(1, 6, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    expected = [seed[0] + sum(inputs[0, k] for k in range(t + 1)) for t in range(6)]
    prefix_sums = compute_episodic_prefix_sum(inputs, torch.zeros(1, 6), seed, boundary)
    torch.testing.assert_close(prefix_sums[0], torch.stack(expected))


def test_a_flag_in_the_first_column_by_hand() -> None:
    inputs, dones, seed = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1, 0, 1]]), torch.tensor([10.0])
    assert compute_episodic_prefix_sum(inputs, dones, seed).tolist() == [[11.0, 2.0, 5.0]]
    assert compute_episodic_prefix_sum(inputs, dones, seed, "starts_at").tolist() == [[1.0, 3.0, 3.0]]


def test_nan_stays_in_its_episode() -> None:
    nan = math.nan
    inputs, flags = torch.tensor([[1.0, nan, 1.0, 1.0, nan, 1.0]]), torch.tensor([[0, 0, 1, 0, 0, 0]])
    prefix_sums = compute_episodic_prefix_sum(inputs, flags)
    assert prefix_sums.isnan().tolist() == [[False, True, True, False, True, True]]
    prefix_sums = compute_episodic_prefix_sum(inputs, flags, boundary="starts_at")
    assert prefix_sums.isnan().tolist() == [[False, True, False, False, True, True]]
    ones, first, seed = torch.ones(1, 2), torch.tensor([[1, 0]]), torch.tensor([nan])
    assert compute_episodic_prefix_sum(ones, first, seed).isnan().tolist() == [[True, False]]
    assert compute_episodic_prefix_sum(ones, first, seed, "starts_at").tolist() == [[1.0, 2.0]]


@BOTH
def test_time_first_is_the_transpose(boundary: str) -> None:
    torch.manual_seed(0)
    inputs, seed = torch.randn(3, 7), torch.randn(3)
    dones = torch.rand(3, 7) < 0.2
    row_major = compute_episodic_prefix_sum(inputs, dones, seed, boundary)
    assert torch.equal(compute_episodic_prefix_sum(inputs.T, dones.T, seed, boundary, time_dim=0), row_major.T)


@BOTH
def test_empty(boundary: str) -> None:
    for shape in ((0, 5), (3, 0)):
        x = torch.ones(shape)
        assert compute_episodic_prefix_sum(x, x, x.new_ones(shape[0]), boundary).shape == shape
