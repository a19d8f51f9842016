"""The oracle against worked values, and against equations 3 and 4 summed out term by term."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_retrace.reference import compute_retrace

CASES = load_cases(Path(__file__).parent / "cases" / "compute_retrace.json")


def drawn(rows: int = 1, steps: int = 6, count: int = 3) -> dict[str, Any]:
    """Arguments in float64 without a boundary."""
    torch.manual_seed(0)
    return {
        "action_probs_target": torch.randn(rows, steps, count, dtype=torch.float64).softmax(-1),
        "action_probs_behavior": torch.rand(rows, steps, dtype=torch.float64) * 0.9 + 0.1,
        "q_values": torch.randn(rows, steps, dtype=torch.float64),
        "next_q_values_all": torch.randn(rows, steps, count, dtype=torch.float64),
        "actions": torch.randint(count, (rows, steps)),
        "rewards": torch.randn(rows, steps, dtype=torch.float64),
        "terminateds": torch.zeros(rows, steps),
        "truncateds": None,
        "gamma": 0.9,
        "lambda_": 0.8,
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    outputs = compute_retrace(**case.inputs, **case.params)
    for output, name in zip(outputs, ("targets", "advantages"), strict=True):
        torch.testing.assert_close(output, case.expected[name], rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("c_bar", [1.0, 0.5, None])
def test_equation_4_as_a_sum(c_bar: float | None) -> None:
    given = drawn()
    pi, mu, q = (given[name][0] for name in ("action_probs_target", "action_probs_behavior", "q_values"))
    ratio = pi.gather(-1, given["actions"][0].unsqueeze(-1))[:, 0] / mu
    next_pi = torch.cat([pi[1:], pi[-1:]])
    delta = given["rewards"][0] + 0.9 * (next_pi * given["next_q_values_all"][0]).sum(-1) - q
    trace = 0.8 * ratio.clamp(max=math.inf if c_bar is None else c_bar)
    # Q(s_t, a_t) plus the sum over k of gamma^k, the traces from t + 1 to t + k, and delta[t + k].
    expected = [
        q[t] + sum(0.9**k * math.prod(trace[t + 1 : t + k + 1].tolist()) * delta[t + k] for k in range(6 - t))
        for t in range(6)
    ]
    targets, _ = compute_retrace(**given, c_bar=c_bar)
    torch.testing.assert_close(targets[0], torch.stack(expected))


def two_actions(**changes: Any) -> dict[str, Any]:
    """Three steps whose numbers are easily worked out: gamma 0.5, every trace 1."""
    return {
        "action_probs_target": torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]]),
        "action_probs_behavior": torch.tensor([[0.5, 1.0, 1.0]]),
        "q_values": torch.tensor([[1.0, 2.0, 3.0]]),
        "next_q_values_all": torch.tensor([[[2.0, 4.0], [6.0, 8.0], [10.0, 20.0]]]),
        "actions": torch.tensor([[0, 0, 1]]),
        "rewards": torch.ones(1, 3),
        "terminateds": torch.zeros(1, 3),
        "truncateds": None,
        "gamma": 0.5,
    } | changes


def test_one_step_of_each_kind_by_hand() -> None:
    # The last column: pi(.|s_2) stands in. D[2] = 1 + 0.5 * 20 - 3 = 8, D[1] = 1 + 0.5 * 8 - 2 + 0.5 * 8 = 7,
    # D[0] = 1 + 0.5 * 2 - 1 + 0.5 * 7 = 4.5.
    targets, advantages = compute_retrace(**two_actions())
    assert targets.tolist() == [[5.5, 9.0, 11.0]]
    assert advantages.tolist() == [[4.5, 4.5, 8.0]]
    # The middle step truncated: pi(.|s_1) stands in, D[1] = 1 + 0.5 * 6 - 2 = 2.
    targets, advantages = compute_retrace(**two_actions(truncateds=torch.tensor([[0, 1, 0]])))
    assert targets.tolist() == [[3.0, 4.0, 11.0]]
    assert advantages.tolist() == [[2.0, 2.0, 8.0]]
    # Terminated, flagged as truncated or not: D[1] = 1 - 2.
    for truncateds in (None, torch.tensor([[0, 1, 0]])):
        changes = {"terminateds": torch.tensor([[0, 1, 0]]), "truncateds": truncateds}
        targets, advantages = compute_retrace(**two_actions(**changes))
        assert targets.tolist() == [[1.5, 1.0, 11.0]]
        assert advantages.tolist() == [[0.5, -1.0, 8.0]]


def test_the_next_policy() -> None:
    even = torch.full((1, 2), 0.5)
    # One step of it serves the last column only: expected[2] = 15; the middle step is truncated, and has a stand-in.
    changes = {"next_action_probs_target": even, "truncateds": torch.tensor([[0, 1, 0]])}
    targets, _ = compute_retrace(**two_actions(**changes))
    assert targets.tolist() == [[3.0, 4.0, 8.5]]
    # All of it serves every step: expected = 3, 7, 15.
    changes["next_action_probs_target"] = even.unsqueeze(1).expand(1, 3, 2)
    targets, _ = compute_retrace(**two_actions(**changes))
    assert targets.tolist() == [[1 + 0.5 * 3 + 0.5 * 2.5, 4.5, 8.5]]


def test_values_make_policy_gradient_advantages() -> None:
    targets, advantages = compute_retrace(**two_actions(values=torch.full((1, 3), 2.0)))
    assert advantages.tolist() == (targets - 2).tolist()


@pytest.mark.parametrize("action", [-1, 2, 2**40])
def test_an_action_that_does_not_exist_is_nan(action: int) -> None:
    targets, advantages = compute_retrace(**two_actions(actions=torch.tensor([[0, action, 1]])))
    assert targets.isnan().tolist() == [[True, False, False]]
    assert advantages.isnan().tolist() == [[False, True, False]]


def test_ratios_are_clipped_but_not_nan_ones() -> None:
    changes: dict[str, Any] = {"action_probs_behavior": torch.tensor([[0.25, 0.0, math.nan]]), "rho_bar": 1.5}
    targets, _ = compute_retrace(**two_actions(**changes))
    # The trace into step 2 is NaN, and so is every target before it.
    assert targets.isnan().tolist() == [[True, True, False]]
    changes["terminateds"] = torch.ones(1, 3)
    _, advantages = compute_retrace(**two_actions(**changes))
    assert advantages[0, :2].tolist() == [0.0, -1.5]
    assert advantages[0, 2].isnan()


def test_gamma_and_lambda_per_step() -> None:
    changes = {"gamma": torch.tensor([[0.5, 0.25, 0.0]]), "lambda_": torch.tensor([[0.5, 0.5, math.nan]])}
    targets, _ = compute_retrace(**two_actions(**changes))
    # D[2] = -2, D[1] = 1 + 0.25 * 8 - 2 - 0.125 * 2 = 0.75, D[0] = 1 + 0.25 * 0.75.
    assert targets.tolist() == [[2.1875, 2.75, 1.0]]


def test_time_first_is_the_transpose() -> None:
    given = drawn(rows=3, steps=7, count=4) | {
        "terminateds": torch.rand(3, 7) < 0.2,
        "truncateds": torch.rand(3, 7) < 0.2,
    }
    turned = {name: x.transpose(0, 1) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    for time_dim in (0, -2):
        for output, other in zip(compute_retrace(**given), compute_retrace(**turned, time_dim=time_dim), strict=True):
            assert torch.equal(other.T, output)
