"""compute_eligibility_traces of packed sequences, on the CPU: what each of them gives apart."""

from __future__ import annotations

from typing import Any

import pytest
from rl_triton_core.testing.calls import Draw, assert_packs
from rl_triton_traces import compute_eligibility_traces, reference


@pytest.mark.parametrize("seeded", [False, True], ids=["from nothing", "seeded"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "ratios"])
@pytest.mark.parametrize("kind", ["accumulating", "replacing", "dutch"])
@pytest.mark.parametrize("shape", [(1, 90), (3, 61)], ids=str)
def test_sequences_give_what_they_give_apart(shape: tuple[int, int], kind: str, weighted: bool, seeded: bool) -> None:
    draw = Draw(shape)
    gradients = draw.numbers().masked_fill(draw.numbers() < 0.5, 0.0)
    arguments: dict[str, Any] = {"gradients": gradients, "dones": draw.flags("random")}
    arguments |= {"gamma": 0.99, "lambda_": 0.9, "kind": kind}
    if kind == "dutch":
        arguments |= {"gradients": (gradients != 0).float(), "alpha": 0.4}
    elif weighted:
        arguments["ratios"] = (0.2 * draw.numbers()).exp()
    if seeded:
        arguments["seed_values"] = draw.numbers(shape[:1])
    assert_packs(compute_eligibility_traces, reference.compute_eligibility_traces, arguments, device="cpu")
