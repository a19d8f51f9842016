"""The oracle against worked values, and against equation 1 summed out term by term."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_vtrace.reference import compute_vtrace

CASES = load_cases(Path(__file__).parent / "cases" / "compute_vtrace.json")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    targets, advantages = compute_vtrace(**case.inputs, **case.params)
    torch.testing.assert_close(targets, case.expected["targets"], rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(advantages, case.expected["advantages"], rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("rho_bar", "c_bar"), [(1.0, 1.0), (1.5, 0.7), (None, None), (math.inf, 1.0)])
def test_equation_1_as_a_sum(rho_bar: float | None, c_bar: float | None) -> None:
    torch.manual_seed(0)
    log_pi, log_mu, rewards, values = (torch.randn(1, 6, dtype=torch.float64) for _ in range(4))
    last_value = torch.randn(1, dtype=torch.float64)
    gamma, lambda_, steps = 0.9, 0.8, 6
    following = torch.cat([values[:, 1:], last_value[:, None]], 1)[0]
    r, v, ratio = rewards[0], values[0], (log_pi - log_mu).exp()[0]
    rho = [min(float(x), rho_bar or math.inf) for x in ratio]
    c = [lambda_ * min(float(x), c_bar or math.inf) for x in ratio]
    expected = [
        float(v[s])
        + sum(
            gamma ** (t - s) * math.prod(c[s:t]) * rho[t] * float(r[t] + gamma * following[t] - v[t])
            for t in range(s, steps)
        )
        for s in range(steps)
    ]
    targets, _ = compute_vtrace(
        log_pi, log_mu, values, rewards, torch.zeros(1, 6), None, gamma, rho_bar, c_bar,
        last_value=last_value, lambda_=lambda_,
    )  # fmt: skip
    torch.testing.assert_close(targets[0], torch.tensor(expected, dtype=torch.float64))


def test_one_step_of_each_kind_by_hand() -> None:
    ones, flags = torch.ones(1, 4), torch.tensor([[0, 1, 0, 0]])
    zeros = torch.zeros(1, 4)
    # Inside an episode, truncated (with 10 to continue with), inside an episode, the last column (with 20).
    bootstrap_values = torch.tensor([[7.0, 10.0, 7.0, 20.0]])
    targets, advantages = compute_vtrace(
        zeros, zeros, 2 * ones, ones, zeros, flags, 0.5, bootstrap_values=bootstrap_values, lambda_=0.5, pg_rho_bar=0.5
    )
    delta = [1 + 0.5 * 2 - 2, 1 + 0.5 * 10 - 2, 1 + 0.5 * 2 - 2, 1 + 0.5 * 20 - 2]
    D = [delta[0] + 0.25 * delta[1], delta[1], delta[2] + 0.25 * delta[3], delta[3]]
    assert targets.tolist() == [[2 + x for x in D]]
    q = [0.5 * 2 + 0.5 * (2 + D[1]), 10, 0.5 * 2 + 0.5 * (2 + D[3]), 20]
    assert advantages.tolist() == [[0.5 * (1 + 0.5 * x - 2) for x in q]]
    # A termination has nothing to continue with, whatever the last value says.
    targets, advantages = compute_vtrace(
        zeros, zeros, 2 * ones, ones, flags, None, 0.5, last_value=torch.tensor([20.0])
    )
    D = [0.5 * (1 - 2), 1 - 2, 0.5 * (1 + 0.5 * 20 - 2), 1 + 0.5 * 20 - 2]
    assert targets.tolist() == [[2 + x for x in D]]
    assert advantages.tolist() == [D]
    # Truncated with nothing to continue with: 0, as after a termination.
    without = compute_vtrace(zeros, zeros, 2 * ones, ones, zeros, flags, 0.5, last_value=torch.tensor([20.0]))
    assert without[0].tolist() == targets.tolist()
    assert without[1].tolist() == advantages.tolist()


def test_a_leak_by_hand() -> None:
    """Ratios of 4 and 1/2 under clips of 1, 2 and 3: a quarter of what lies above them comes through."""
    log_ratio = torch.tensor([[4.0, 0.5]]).double().log()
    zeros = torch.zeros(1, 2)
    targets, advantages = compute_vtrace(
        log_ratio, zeros, zeros, zeros + 1, zeros, None, 0.5, 1.0, 2.0, pg_rho_bar=3.0, leak=0.25
    )
    rho, c, pg_rho = (0.25 * 4 + 0.75 * clip for clip in (1, 2, 3))
    assert targets[0].tolist() == pytest.approx([rho + 0.5 * c * 0.5, 0.5])
    assert advantages[0].tolist() == pytest.approx([pg_rho * (1 + 0.5 * 0.5), 0.5])


@pytest.mark.parametrize("bound", [1.0, 3.0, None])
def test_where_nothing_leaks_and_where_all_does(bound: float | None) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 6, dtype=torch.float64) for _ in range(4)]
    flags = torch.rand(2, 6) < 0.2
    for leak, equal in ((0.0, bound), (1.0, None)):
        leaking = compute_vtrace(*given, flags, rho_bar=bound, c_bar=bound, leak=leak)
        for x, y in zip(leaking, compute_vtrace(*given, flags, rho_bar=equal, c_bar=equal), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    infinite = torch.full((1, 1), 1000.0)
    for x in compute_vtrace(infinite, 0 * infinite, 0 * infinite, infinite, 0 * infinite, leak=0.0):
        assert x.item() == 1000.0


def test_clips_apply_before_anything_is_multiplied() -> None:
    inf, nan = math.inf, math.nan
    log_pi = torch.tensor([[1000.0, -1000.0, -inf, -inf]]).t()
    log_mu = torch.tensor([[0.0, 0.0, 0.0, -inf]]).t()
    ones = torch.ones(4, 1)
    targets, advantages = compute_vtrace(log_pi, log_mu, 0 * ones, 2 * ones, ones, rho_bar=3.0, pg_rho_bar=5.0)
    torch.testing.assert_close(targets.t(), torch.tensor([[6.0, 0.0, 0.0, nan]]).double(), equal_nan=True)
    torch.testing.assert_close(advantages.t(), torch.tensor([[10.0, 0.0, 0.0, nan]]).double(), equal_nan=True)
    unclipped = compute_vtrace(log_pi, log_mu, 0 * ones, 2 * ones, ones, rho_bar=None)
    for x in unclipped:
        torch.testing.assert_close(x.t(), torch.tensor([[inf, 0.0, 0.0, nan]]).double(), equal_nan=True)


def test_gamma_and_lambda_per_step() -> None:
    gamma, lambda_ = torch.tensor([[0.5, 0.25]]), torch.tensor([[0.5, math.nan]])
    zeros = torch.zeros(1, 2)
    targets, advantages = compute_vtrace(zeros, zeros, zeros, zeros + 1, zeros, None, gamma, lambda_=lambda_)
    assert targets.tolist() == [[1.25, 1.0]]
    assert advantages.tolist() == [[1.25, 1.0]]


def test_time_first_is_the_transpose() -> None:
    torch.manual_seed(0)
    log_pi, log_mu, values, rewards = (torch.randn(3, 7) for _ in range(4))
    flags, last_value = torch.rand(3, 7) < 0.2, torch.randn(3)
    row_major = compute_vtrace(log_pi, log_mu, values, rewards, flags, last_value=last_value)
    time_major = compute_vtrace(log_pi.T, log_mu.T, values.T, rewards.T, flags.T, last_value=last_value, time_dim=0)
    for a, b in zip(time_major, row_major, strict=True):
        assert torch.equal(a, b.T)
