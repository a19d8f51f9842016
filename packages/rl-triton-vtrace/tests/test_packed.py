"""compute_vtrace of packed sequences, on the CPU: what each of them gives apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import Draw, assert_packs, with_mask
from rl_triton_vtrace import compute_vtrace, reference

OPTIONS: dict[str, dict[str, Any]] = {
    "one clip": {},
    "clips": {"rho_bar": 1.5, "c_bar": 0.9, "pg_rho_bar": 2.5, "lambda_": 0.8},
    "no clips": {"rho_bar": None, "c_bar": None},
    "leak": {"leak": 0.3},
}


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("continuation", ["last_value", "bootstrap_values", "next_values"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", [(1, 90), (3, 61)], ids=str)
def test_sequences_give_what_they_give_apart(
    shape: tuple[int, int], option: str, continuation: str, masked: bool
) -> None:
    draw = Draw(shape)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "values")}
    arguments |= {name: 0.3 * draw.numbers() for name in ("log_pi_target", "log_pi_behavior")}
    arguments |= {name: draw.flags("random") for name in ("terminateds", "truncateds")}
    arguments[continuation] = draw.numbers(shape[:1] if continuation == "last_value" else None)
    arguments |= OPTIONS[option]
    assert_packs(compute_vtrace, reference.compute_vtrace, with_mask(arguments) if masked else arguments, device="cpu")


def test_a_ratio_behind_a_seam_does_not_matter() -> None:
    x, flags, cu_seqlens = torch.ones(6), torch.zeros(6), torch.tensor([0, 3, 6])
    log_pi = torch.tensor([0.0, 0.0, 0.0, torch.inf, 0.0, 0.0])
    targets, advantages = compute_vtrace(
        log_pi, torch.zeros(6), x, x, flags, rho_bar=None, c_bar=None, cu_seqlens=cu_seqlens, time_dim=0
    )
    assert targets[:3].isfinite().all()
    assert advantages[:3].isfinite().all()
    assert not targets[3].isfinite()
