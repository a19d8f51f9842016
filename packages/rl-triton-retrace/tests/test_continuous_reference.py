"""The oracle for continuous actions against sums written out, numbers worked out by hand, and the discrete one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rl_triton_retrace.reference import compute_retrace, compute_retrace_continuous

TRACES = ("retrace", "importance", "harutyunyan", "tree_backup")


def drawn(rows: int = 1, steps: int = 6) -> dict[str, Any]:
    """Arguments in float64 without a boundary."""
    generator = torch.Generator().manual_seed(0)
    names = ("log_pi_target", "log_pi_behavior", "q_values", "next_values", "rewards")
    numbers = {name: torch.randn(rows, steps, generator=generator, dtype=torch.float64) for name in names}
    return numbers | {"terminateds": torch.zeros(rows, steps), "truncateds": None, "gamma": 0.9, "lambda_": 0.8}


@pytest.mark.parametrize("c_bar", [1.0, 0.5, None])
@pytest.mark.parametrize("trace", TRACES)
def test_equation_4_as_a_sum(trace: str, c_bar: float | None) -> None:
    given = drawn()
    pi, mu, q, following, rewards = (x[0] for x in list(given.values())[:5])
    c = {
        "retrace": 0.8 * (pi - mu).exp().clamp(max=math.inf if c_bar is None else c_bar),
        "importance": 0.8 * (pi - mu).exp(),
        "harutyunyan": torch.full_like(pi, 0.8),
        "tree_backup": 0.8 * pi.exp(),
    }[trace]
    delta = rewards + 0.9 * following - q
    # Q(s_t, a_t) plus the sum over k of gamma^k, the traces from t + 1 to t + k, and delta[t + k].
    expected = [
        q[t] + sum(0.9**k * math.prod(c[t + 1 : t + k + 1].tolist()) * delta[t + k] for k in range(6 - t))
        for t in range(6)
    ]
    targets, _ = compute_retrace_continuous(**given, trace=trace, c_bar=c_bar)
    torch.testing.assert_close(targets[0], torch.stack(expected))


def by_hand(**changes: Any) -> Any:
    """Three steps with gamma 0.5, ratios of 1/2, 4 and 2, probabilities of 1/4, 1/2 and 1, lambda 1."""
    target, behavior = torch.tensor([[0.25, 0.5, 1.0]]), torch.tensor([[0.5, 0.125, 0.5]])
    good: dict[str, Any] = {
        "log_pi_target": target.double().log(),
        "log_pi_behavior": behavior.double().log(),
        "q_values": torch.tensor([[1.0, 2.0, 3.0]]),
        "next_values": torch.tensor([[3.0, 6.0, 20.0]]),
        "rewards": torch.ones(1, 3),
        "terminateds": torch.zeros(1, 3),
        "truncateds": None,
        "gamma": 0.5,
        "rho_bar": 2.0,
    }
    return [x[0].tolist() for x in compute_retrace_continuous(**(good | changes))]


def test_one_step_of_each_kind_by_hand() -> None:
    # delta = [1.5, 2, 8]; with traces of 1: D[1] = 2 + 4 = 6, D[0] = 1.5 + 3 = 4.5.
    targets, advantages = by_hand()
    assert targets == pytest.approx([5.5, 8.0, 11.0])
    # q = [8, 11, 20], weights of 1/2, 2 and 2.
    assert advantages == pytest.approx([0.5 * 4.0, 2 * 4.5, 2 * 8.0])
    # The middle step truncated: it goes on with next_values.
    targets, advantages = by_hand(truncateds=torch.tensor([[0, 1, 0]]))
    assert targets == pytest.approx([1.0 + 1.5 + 0.5 * 2, 4.0, 11.0])
    assert advantages == pytest.approx([0.5 * (1 + 0.5 * 4 - 1), 2 * 2.0, 16.0])
    # Terminated, flagged as truncated or not, with nothing of next_values.
    for truncateds in (None, torch.tensor([[0, 1, 0]])):
        ended = torch.tensor([[0, 1, 0]])
        hidden = torch.tensor([[3.0, math.nan, 20.0]])
        targets, advantages = by_hand(terminateds=ended, truncateds=truncateds, next_values=hidden)
        assert targets == pytest.approx([1.0 + 1.5 + 0.5 * -1, 1.0, 11.0])
        assert advantages == pytest.approx([0.5 * (1 + 0.5 * 1 - 1), 2 * -1.0, 16.0])


def test_traces_by_hand() -> None:
    # D[2] = 8; D[1] = 2 + 0.5 * c[2] * 8; D[0] = 1.5 + 0.5 * c[1] * D[1].
    for trace, c1, c2 in (
        *(("retrace", 1.0, 1.0), ("importance", 4.0, 2.0), ("harutyunyan", 1.0, 1.0), ("tree_backup", 0.5, 1.0)),
    ):
        middle = 2 + 0.5 * c2 * 8
        targets, _ = by_hand(trace=trace)
        assert targets == pytest.approx([1 + 1.5 + 0.5 * c1 * middle, 2 + middle, 11.0])
    assert by_hand(trace="harutyunyan", lambda_=0.5)[0] == pytest.approx([1 + 1.5 + 0.25 * 4, 2 + 4.0, 11.0])


def test_values_and_an_unknown_behavior() -> None:
    values = torch.full((1, 3), 2.0)
    targets, advantages = by_hand(values=values)
    assert advantages == pytest.approx([0.5 * (targets[0] - 2), 2 * (targets[1] - 2), 2 * (targets[2] - 2)])
    for more in ({"trace": "tree_backup"}, {"trace": "harutyunyan", "log_pi_target": None}):
        targets, advantages = by_hand(values=values, log_pi_behavior=None, **more)
        assert advantages == pytest.approx([x - 2 for x in targets])


def test_gamma_and_lambda_per_step() -> None:
    nan = math.nan
    gamma, lambda_ = torch.tensor([[0.5, 0.25, 0.0]]), torch.tensor([[0.5, 0.5, nan]])
    # delta = [1.5, 0.5, -2]; D[1] = 0.5 + 0.125 * -2 = 0.25.
    targets, _ = by_hand(gamma=gamma, lambda_=lambda_)
    assert targets == pytest.approx([1 + 1.5 + 0.25 * 0.25, 2.25, 1.0])


def test_it_is_the_discrete_one_with_the_expectation_given() -> None:
    generator = torch.Generator().manual_seed(1)
    policy, next_q = (torch.randn(3, 7, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    policy = policy.softmax(-1)
    actions = torch.randint(4, (3, 7), generator=generator)
    given: dict[str, Any] = drawn(3, 7) | {name: torch.rand(3, 7, generator=generator) < 0.2 for name in FLAGS}
    for name in ("log_pi_target", "log_pi_behavior", "next_values"):
        del given[name]
    behavior = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    for more in ({}, {"values": given["rewards"].flip(0)}):
        discrete = compute_retrace(
            policy,
            behavior,
            next_q_values_all=next_q,
            actions=actions,
            next_action_probs_target=policy.flip(0),
            **given,
            **more,
        )
        continuous = compute_retrace_continuous(
            policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1).log(),
            behavior.log(),
            next_values=(policy.flip(0) * next_q).sum(-1),
            **given,
            **more,
        )
        for x, y in zip(discrete, continuous, strict=True):
            torch.testing.assert_close(x, y)


FLAGS = ("terminateds", "truncateds")


@pytest.mark.parametrize("trace", TRACES)
def test_time_first_is_the_transpose(trace: str) -> None:
    given = drawn(3, 7) | {"terminateds": torch.rand(3, 7) < 0.2, "truncateds": torch.rand(3, 7) < 0.2}
    turned = {name: x.T if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    straight = compute_retrace_continuous(**given, trace=trace)
    for time_dim in (0, -2):
        for x, y in zip(straight, compute_retrace_continuous(**turned, trace=trace, time_dim=time_dim), strict=True):
            assert torch.equal(y.T, x)
