"""Rollouts of vector environments, row by row by hand."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest
import torch
from rl_triton_core.autoreset import Rollout, from_gymnasium
from torch import Tensor

NAN = math.nan
# One environment a row: cut off at t = 1 and running on; terminated at t = 1, and cut off in the last column.
TERMINATIONS = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]])
TRUNCATIONS = torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
VALUES = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
LAST = torch.tensor([9.0, 10.0])
FINAL = torch.tensor([[NAN, 20.0, NAN, NAN], [NAN, NAN, NAN, 40.0]])


class AutoresetMode(enum.Enum):
    """Stands in for Gymnasium's, which core does not need."""

    NEXT_STEP = "NextStep"


def read(dim: int = 1, **changes: Any) -> Rollout:
    given = {"terminations": TERMINATIONS, "truncations": TRUNCATIONS, "values": VALUES, "last_value": LAST, **changes}
    laid_out = {name: x.movedim(-1, dim) if isinstance(x, Tensor) and x.dim() == 2 else x for name, x in given.items()}
    return Rollout(*(x.movedim(dim, -1) for x in from_gymnasium(**laid_out, time_dim=dim)))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("mode", ["NEXT_STEP", "NextStep", AutoresetMode.NEXT_STEP])
def test_next_step(mode: Any, dim: int) -> None:
    rollout = read(dim, mode=mode)
    assert rollout.valid.tolist() == [[True, True, False, True], [True, True, False, True]]
    assert rollout.terminateds.tolist() == [[False, False, True, False], [False, True, True, False]]
    assert rollout.truncateds.tolist() == [[False, True, False, False], [False, False, False, True]]
    assert rollout.bootstrap_values.tolist() == [[0.0, 3.0, 0.0, 9.0], [0.0, 0.0, 0.0, 10.0]]


def test_next_step_goes_on_from_the_window_before() -> None:
    rollout = read(mode="NEXT_STEP", previous_done=torch.tensor([0, 3]))
    assert rollout.valid[:, 0].tolist() == [True, False]
    assert rollout.terminateds[:, 0].tolist() == [False, True]
    # A window that begins and ends with a step of no episode continues with nothing.
    one = {
        name: x[:, :1] for name, x in (("terminations", TERMINATIONS), ("truncations", TRUNCATIONS), ("values", VALUES))
    }
    rollout = read(
        mode="NEXT_STEP", previous_done=torch.tensor([False, True]), last_value=torch.tensor([9.0, NAN]), **one
    )
    assert rollout.bootstrap_values.tolist() == [[9.0], [0.0]]


@pytest.mark.parametrize("dim", [0, 1])
def test_same_step(dim: int) -> None:
    # After the end of an episode in the last column, observation T is of the next one: its value is not read.
    rollout = read(dim, mode="SAME_STEP", final_values=FINAL, last_value=torch.tensor([9.0, NAN]))
    assert rollout.valid.all()
    assert rollout.terminateds.tolist() == (TERMINATIONS != 0).tolist()
    assert rollout.truncateds.tolist() == (TRUNCATIONS != 0).tolist()
    assert rollout.bootstrap_values.tolist() == [[0.0, 20.0, 0.0, 9.0], [0.0, 0.0, 0.0, 40.0]]
    terminated = read(dim, mode="SAME_STEP", final_values=FINAL, terminations=torch.ones(2, 4))
    assert terminated.bootstrap_values.tolist() == [[0.0] * 4] * 2


def test_disabled() -> None:
    rollout = read(mode="DISABLED")
    assert rollout.valid.all()
    assert rollout.bootstrap_values.tolist() == [[0.0, 3.0, 0.0, 9.0], [0.0, 0.0, 0.0, 10.0]]
    rollout = read(mode="DISABLED", final_values=FINAL)
    assert rollout.bootstrap_values.tolist() == [[0.0, 20.0, 0.0, 9.0], [0.0, 0.0, 0.0, 40.0]]


def test_gradients_reach_the_values_that_are_read() -> None:
    values, last_value = VALUES.clone().requires_grad_(), LAST.clone().requires_grad_()
    read(mode="NEXT_STEP", values=values, last_value=last_value).bootstrap_values.sum().backward()
    assert values.grad is not None
    assert last_value.grad is not None
    assert values.grad.tolist() == [[0.0, 0.0, 1.0, 0.0], [0.0] * 4]
    assert last_value.grad.tolist() == [1.0, 1.0]


def test_dtypes_and_empty_windows() -> None:
    assert (
        read(mode="NEXT_STEP", values=VALUES.bfloat16(), last_value=LAST.bfloat16()).bootstrap_values.dtype
        == torch.bfloat16
    )
    assert read(mode="NEXT_STEP", values=VALUES.double()).bootstrap_values.dtype == torch.float64
    for shape in ((0, 4), (2, 0)):
        x = torch.empty(shape)
        rollout = from_gymnasium(x, x, x, mode="NEXT_STEP", last_value=torch.empty(shape[0]))
        assert all(part.shape == shape for part in rollout)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mode": "SAME_STEP"}, ValueError, "final_values: expected a torch.Tensor for SAME_STEP"),
        ({"mode": "NEXT_STEP", "final_values": FINAL}, ValueError, "final_values: expected None for NEXT_STEP"),
        ({"mode": "DISABLED", "previous_done": LAST}, ValueError, "previous_done: expected None for DISABLED"),
        ({"mode": "LAST_STEP"}, ValueError, "mode: expected one of NEXT_STEP, SAME_STEP, DISABLED, got 'LAST_STEP'"),
        ({"mode": None}, TypeError, "mode: expected .*got NoneType"),
        ({"mode": "NEXT_STEP", "last_value": None}, TypeError, "last_value: expected a torch.Tensor, got None"),
        ({"mode": "NEXT_STEP", "truncations": None}, TypeError, "truncations: expected a torch.Tensor, got None"),
        ({"mode": "NEXT_STEP", "last_value": torch.zeros(4)}, ValueError, r"last_value: expected shape \(2,\)"),
        (
            {"mode": "NEXT_STEP", "terminations": torch.zeros(2, 5)},
            ValueError,
            r"terminations: expected shape \(2, 4\)",
        ),
    ],
)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read(**changes)
