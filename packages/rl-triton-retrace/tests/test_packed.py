"""compute_retrace and compute_retrace_continuous of packed sequences, on the CPU: what each of them gives apart."""

from __future__ import annotations

from typing import Any

import pytest
from rl_triton_core.testing.calls import Draw, assert_packs
from rl_triton_retrace import compute_retrace, compute_retrace_continuous, reference

SHAPES = [(1, 90), (3, 61)]


@pytest.mark.parametrize("truncated", [False, True], ids=["", "truncateds"])
@pytest.mark.parametrize("option", ["stand-in", "next policy", "last policy", "values", "per-step"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sequences_give_what_they_give_apart(shape: tuple[int, int], option: str, truncated: bool) -> None:
    draw = Draw(shape)
    arguments: dict[str, Any] = {
        "rewards": draw.numbers(),
        "action_probs_target": draw.numbers((*shape, 4)).softmax(-1),
        "action_probs_behavior": draw.numbers().sigmoid() * 0.9 + 0.1,
        "q_values": draw.numbers(),
        "next_q_values_all": draw.numbers((*shape, 4)),
        "actions": (draw.numbers().abs() * 9).long() % 4,
        "terminateds": draw.flags("random"),
        "truncateds": draw.flags("random") if truncated else None,
        "gamma": 0.97,
    }
    of_sequences: tuple[str, ...] = ()
    if option in ("next policy", "last policy"):
        of = (*shape, 4) if option == "next policy" else (shape[0], 4)
        arguments["next_action_probs_target"] = draw.numbers(of).softmax(-1)
        of_sequences = ("next_action_probs_target",) if option == "last policy" else ()
    if option == "values":
        arguments["values"] = draw.numbers()
    if option == "per-step":
        arguments |= {name: draw.numbers().sigmoid() for name in ("gamma", "lambda_")}
    assert_packs(compute_retrace, reference.compute_retrace, arguments, of_sequences=of_sequences, device="cpu")


@pytest.mark.parametrize("trace", ["retrace", "importance", "harutyunyan", "tree_backup"])
@pytest.mark.parametrize("valued", [False, True], ids=["", "values"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_continuous_actions(shape: tuple[int, int], valued: bool, trace: str) -> None:
    draw = Draw(shape)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "q_values", "next_values")}
    arguments |= {name: 0.3 * draw.numbers() - 1.0 for name in ("log_pi_target", "log_pi_behavior")}
    arguments |= {name: draw.flags("random") for name in ("terminateds", "truncateds")}
    arguments |= {"gamma": 0.97, "lambda_": 0.9, "trace": trace}
    if valued:
        arguments["values"] = draw.numbers()
    assert_packs(compute_retrace_continuous, reference.compute_retrace_continuous, arguments, device="cpu")
