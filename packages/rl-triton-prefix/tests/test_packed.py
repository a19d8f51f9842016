"""compute_episodic_prefix_sum of packed sequences, on the CPU: what each of them gives apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import Draw, assert_packs
from rl_triton_prefix import compute_episodic_prefix_sum, reference


@pytest.mark.parametrize("seeded", [False, True], ids=["from nothing", "seeded"])
@pytest.mark.parametrize("shape", [(1, 90), (3, 61)], ids=str)
def test_sequences_give_what_they_give_apart(shape: tuple[int, int], seeded: bool) -> None:
    draw = Draw(shape)
    arguments: dict[str, Any] = {"inputs": draw.numbers(), "dones": draw.flags("random")}
    if seeded:
        arguments["seed_values"] = draw.numbers(shape[:1])
    assert_packs(compute_episodic_prefix_sum, reference.compute_episodic_prefix_sum, arguments, device="cpu")


def test_positions_of_packed_tokens() -> None:
    ones, cu_seqlens = torch.ones(7), torch.tensor([0, 3, 3, 5])
    sums = compute_episodic_prefix_sum(ones, torch.zeros(7), cu_seqlens=cu_seqlens, time_dim=0)
    assert sums.tolist() == [1.0, 2.0, 3.0, 1.0, 2.0, 0.0, 0.0]


def test_flags_at_starts_are_refused() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match='boundary: expected "ends_at" with cu_seqlens, got "starts_at"'):
        compute_episodic_prefix_sum(x, x, boundary="starts_at", cu_seqlens=torch.tensor([0, 3]), time_dim=0)
