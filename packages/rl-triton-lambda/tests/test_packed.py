"""compute_lambda_returns of packed sequences, on the CPU: what each of them gives apart."""

from __future__ import annotations

from typing import Any

import pytest
from rl_triton_core.testing.calls import Draw, assert_packs, with_mask
from rl_triton_lambda import compute_lambda_returns, reference


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("option", ["nothing", "bootstrap_values", "per-step"])
@pytest.mark.parametrize("shape", [(1, 90), (3, 61)], ids=str)
def test_sequences_give_what_they_give_apart(shape: tuple[int, int], option: str, masked: bool) -> None:
    draw = Draw(shape)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "next_values")}
    arguments |= {"terminateds": draw.flags("random"), "gamma": 0.97, "lambda_": 0.9}
    if option == "bootstrap_values":
        arguments |= {"truncateds": draw.flags("random"), option: draw.numbers()}
    if option == "per-step":
        arguments |= {name: draw.numbers().sigmoid() for name in ("gamma", "lambda_")}
    given = with_mask(arguments) if masked else arguments
    assert_packs(compute_lambda_returns, reference.compute_lambda_returns, given, device="cpu")
