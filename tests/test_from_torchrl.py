"""The example with the arguments of TorchRL's vectorised GAE; beside the real one in `nox -s frameworks`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import assert_obeys_rule_as_given
from rl_triton_gae import reference
from torch import Tensor

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "examples" / "from_torchrl.py"))
ours, recurrence = EXAMPLE["generalized_advantage_estimate"], EXAMPLE["recurrence"]


def drawn(shape: tuple[int, ...] = (4, 60, 1), dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = ("state_value", "next_state_value", "reward")
    given = {name: torch.randn(shape, generator=generator, dtype=dtype) for name in names}
    given["done"] = torch.rand(shape, generator=generator) < 0.15
    given["terminated"] = given["done"] & (torch.rand(shape, generator=generator) < 0.5)
    return given


def assert_is_the_definition(function: Any, gamma: Any, lmbda: Any, given: dict[str, Tensor], **layout: int) -> None:
    results = function(gamma, lmbda, **given, **layout)
    done, terminated = given["done"], given["terminated"]
    arguments = {
        "rewards": given["reward"],
        "values": given["state_value"],
        "terminateds": terminated,
        "truncateds": done & ~terminated,
        "gamma": gamma,
        "lambda_": lmbda,
        "next_values": given["next_state_value"],
        "return_targets": True,
        "time_dim": layout.get("time_dim", -2),
    }
    assert_obeys_rule_as_given(lambda **_: results, reference.compute_gae, arguments, given["reward"].dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [ours, recurrence])
@pytest.mark.parametrize(("gamma", "lmbda"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0)])
def test_both_are_the_definition(function: Any, gamma: float, lmbda: float, dtype: torch.dtype) -> None:
    assert_is_the_definition(function, gamma, lmbda, drawn(dtype=dtype))


def test_layouts_and_discounts_per_step() -> None:
    assert_is_the_definition(ours, 0.99, 0.95, drawn((4, 60, 3)))
    assert_is_the_definition(ours, 0.99, 0.95, drawn((4, 60)), time_dim=-1)
    given = drawn()
    gamma, lmbda = torch.rand(2, *given["reward"].shape, generator=torch.Generator().manual_seed(1))
    assert_is_the_definition(ours, gamma, lmbda, given)
    assert_is_the_definition(ours, torch.tensor(0.9).expand_as(gamma), lmbda, given)


def test_without_terminated_every_end_is_one() -> None:
    given = drawn()
    given["terminated"] = given["done"]
    expected = ours(0.99, 0.95, **given)
    del given["terminated"]
    for result, same in zip(ours(0.99, 0.95, **given), expected, strict=True):
        assert torch.equal(result, same)


def test_what_a_termination_hides_is_not_read() -> None:
    given = drawn()
    expected, _ = ours(0.99, 0.95, **given)
    given["next_state_value"].masked_fill_(given["terminated"], torch.nan)
    assert torch.equal(ours(0.99, 0.95, **given)[0], expected)
    assert recurrence(0.99, 0.95, **given)[0][given["terminated"]].isnan().all()


def test_prints_that_they_agree_and_where_the_loop_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"]()
    agree, wrong = capsys.readouterr().out.splitlines()
    difference = float(agree.removeprefix("The call and the loop differ by ").split()[0])
    assert 0 <= difference < 2e-5
    assert wrong == "NaN behind terminations makes 91% of the loop's advantages NaN, and 0% of the call's."


@pytest.fixture
def theirs() -> Any:
    return pytest.importorskip("torchrl.objectives.value.functional").vec_generalized_advantage_estimate


@pytest.mark.parametrize(("gamma", "lmbda"), [(0.99, 0.95), (1.0, 1.0), (0.5, 0.5)])
@pytest.mark.parametrize(("shape", "time_dim"), [((4, 60, 1), -2), ((4, 60, 3), -2), ((4, 60), -1), ((2, 1, 1), -2)])
def test_the_real_function_agrees(
    theirs: Any, shape: tuple[int, ...], time_dim: int, gamma: float, lmbda: float
) -> None:
    given = drawn(shape)
    leaves = [given[name].requires_grad_() for name in ("state_value", "next_state_value", "reward")]
    results = [function(gamma, lmbda, **given, time_dim=time_dim) for function in (ours, theirs)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(advantage.square().sum(), leaves) for advantage, _ in results]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-4)


def test_the_real_function_agrees_on_discounts_per_step(theirs: Any) -> None:
    given = drawn(dtype=torch.float64)
    gamma, lmbda = torch.rand(2, *given["reward"].shape, generator=torch.Generator().manual_seed(1)).double()
    for result, same in zip(theirs(gamma, lmbda, **given), ours(gamma, lmbda, **given), strict=True):
        torch.testing.assert_close(result, same)


@pytest.mark.parametrize(("gamma", "lmbda"), [(0.99, 0.0), (0.0, 0.95)])
def test_the_real_function_raises_at_zero(theirs: Any, gamma: float, lmbda: float) -> None:
    given = drawn()
    with pytest.raises(IndexError):
        theirs(gamma, lmbda, **given)
    assert_is_the_definition(ours, gamma, lmbda, given)


@pytest.mark.parametrize("hidden", [torch.nan, torch.inf])
def test_the_real_function_reads_what_a_termination_hides(theirs: Any, hidden: float) -> None:
    ones, end = torch.ones(1, 6, 1), torch.tensor([[[0], [0], [1], [0], [0], [0]]]).bool()
    given = {"state_value": ones, "next_state_value": ones.masked_fill(end, hidden), "reward": ones, "done": end}
    for function, whole in ((theirs, [False] * 3), (ours, [True] * 3)):
        finite = function(1.0, 1.0, **given)[0].isfinite().flatten().tolist()
        assert finite == [*whole, True, True, True]


def test_the_real_function_has_the_precision_of_float32(theirs: Any) -> None:
    given = drawn(dtype=torch.float64)
    assert_is_the_definition(ours, 0.99, 0.95, given)
    apart = theirs(0.99, 0.95, **given)[0] - ours(0.99, 0.95, **given)[0]
    assert 1e-9 < apart.abs().max() < 1e-5
