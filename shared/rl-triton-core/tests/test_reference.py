"""The oracle against values worked out by hand."""

from __future__ import annotations

import pytest
import torch
from rl_triton_core.reference import segmented_scan

INPUTS = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
HALVES = torch.full((1, 4), 0.5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [1.0, 2.5, 4.25, 6.125]),
        ({"reverse": True}, [3.25, 4.5, 5.0, 4.0]),
        ({"resets": torch.tensor([[0, 0, 1, 0]])}, [1.0, 2.5, 3.0, 5.5]),
        ({"resets": torch.tensor([[0, 1, 0, 0]]), "reverse": True}, [2.0, 2.0, 5.0, 4.0]),
        ({"initial": torch.tensor([8.0])}, [5.0, 4.5, 5.25, 6.625]),
        ({"initial": torch.tensor([8.0]), "reverse": True}, [3.75, 5.5, 7.0, 8.0]),
        ({"initial": torch.tensor([8.0]), "resets": torch.tensor([[1, 0, 0, 0]])}, [1.0, 2.5, 4.25, 6.125]),
    ],
    ids=["forward", "reverse", "reset", "reset-reverse", "initial", "initial-reverse", "initial-behind-a-reset"],
)
def test_by_hand(arguments: dict[str, object], expected: list[float]) -> None:
    assert segmented_scan(INPUTS, HALVES, **arguments).tolist() == [expected]  # type: ignore[arg-type]


def test_time_first_is_the_transpose() -> None:
    inputs, decays = torch.randn(3, 7), torch.rand(3, 7)
    assert torch.equal(segmented_scan(inputs.T, decays.T, time_dim=0), segmented_scan(inputs, decays).T)


def test_what_a_reset_hides_is_not_read() -> None:
    inputs = torch.tensor([[float("nan"), 2.0, 3.0]])
    decays = torch.tensor([[float("nan"), float("inf"), 0.5]])
    y = segmented_scan(inputs, decays, resets=torch.tensor([[False, True, False]]))
    assert y.isnan().tolist() == [[True, False, False]]
    assert y[0, 1:].tolist() == [2.0, 4.0]


def test_the_precision_is_the_callers() -> None:
    assert segmented_scan(INPUTS, HALVES).dtype == torch.float64
    assert segmented_scan(INPUTS, HALVES, dtype=torch.float32).dtype == torch.float32
