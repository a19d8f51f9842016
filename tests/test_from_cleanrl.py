"""The example that replaces CleanRL's loop: equal to it, and right where time limits are told apart."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from rl_triton_core.testing.calls import assert_obeys_rule_as_given
from rl_triton_gae import reference
from torch import Tensor

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "examples" / "from_cleanrl.py"))
SHARED = {"gamma": EXAMPLE["GAMMA"], "lambda_": EXAMPLE["LAMBDA"], "return_targets": True, "time_dim": 0}
SHAPE = (50, 6)


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards, values, the flags of steps that ended an episode, the last row among them, and another such set."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, *SHAPE, generator=generator, dtype=dtype)
    terminateds, truncateds = torch.rand(2, *SHAPE, generator=generator) < 0.1
    terminateds[-1], truncateds[-1] = torch.tensor([[1, 0, 0] * 2, [0, 1, 0] * 2]).bool()
    return rewards, values, terminateds, truncateds & ~terminateds


def at_starts(ended: Tensor) -> tuple[Tensor, Tensor]:
    """The flags as the scripts store them: each at the next observation, the first of which starts episodes."""
    flags = torch.cat((torch.ones(1, SHAPE[1]), ended.float()))
    return flags[:-1], flags[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", ["backward_loop", "one_call"])
def test_both_are_the_definition(function: str, dtype: torch.dtype) -> None:
    rewards, values, ended, _ = drawn(dtype)
    dones, next_done = at_starts(ended)
    next_value = torch.linspace(-2, 2, SHAPE[1], dtype=dtype)
    results = EXAMPLE[function](rewards, values, dones, next_value, next_done)
    arguments = {"rewards": rewards, "values": values, "terminateds": ended, "last_value": next_value, **SHARED}
    assert_obeys_rule_as_given(lambda **_: results, reference.compute_gae, arguments, dtype)


def test_a_step_that_was_cut_off_continues_with_its_final_value() -> None:
    rewards, values, terminateds, truncateds = drawn(torch.float64)
    final_values = 5.0 + torch.arange(rewards.numel(), dtype=torch.float64).view(SHAPE).sin()
    terminated_before, next_terminated = at_starts(terminateds)
    truncated_before, next_truncated = at_starts(truncateds)
    results = EXAMPLE["with_time_limits"](
        rewards, values, terminated_before, truncated_before, next_terminated, next_truncated, final_values
    )
    arguments = {"rewards": rewards, "values": values, "terminateds": terminateds, "truncateds": truncateds}
    arguments |= {"bootstrap_values": final_values, **SHARED}
    assert truncateds[:-1].any()
    assert_obeys_rule_as_given(lambda **_: results, reference.compute_gae, arguments, torch.float64)


def test_prints_that_they_agree_and_where_the_loop_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"]()
    agree, wrong = capsys.readouterr().out.splitlines()
    difference = float(agree.removeprefix("The call and the loop differ by ").split()[0])
    assert 0 <= difference < 1e-5
    # 0.1 + 0.99 * 10 - 10, and without what follows.
    assert wrong == "A time limit that is taken for a termination: -9.9; cut off: 0.0."
