"""The whole-tensor form of V-trace against the oracle, on drawn inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_triton_core.engine.torch_scan import scan_steps
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_vtrace import reference
from rl_triton_vtrace._torch import coefficients, emit
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_vtrace.json")
PER_STEP = (
    *("rewards", "values", "log_pi_target", "log_pi_behavior", "terminateds", "truncateds", "bootstrap_values"),
    *("next_values", "gamma", "lambda_", "rho_bar", "c_bar", "pg_rho_bar"),
)
DEFAULTS = {"gamma": 0.99, "lambda_": 1.0, "rho_bar": 1.0, "c_bar": 1.0}


def compute(given_arguments: dict[str, Any], dim: int = 1) -> tuple[Tensor, ...]:
    """compute_vtrace by way of the functions under test."""
    arguments = DEFAULTS | given_arguments
    arguments["pg_rho_bar"] = arguments.get("pg_rho_bar", arguments["rho_bar"])
    fields = tuple(x if isinstance(x := arguments.get(name), Tensor) else None for name in PER_STEP)
    names = (*PER_STEP[-5:], "leak") if "leak" in arguments else PER_STEP[-5:]
    numbers = tuple(0.0 if isinstance(x := arguments[name], Tensor) else float(x) for name in names)
    row_values = (arguments.get("last_value"),)
    u, decay, cut = coefficients(fields, row_values, numbers, dim)
    return emit(fields, row_values, numbers, scan_steps(u, decay, cut, dim=dim, reverse=True), dim)


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, half of them with NaN or inf, and the time axis.

    No weight is so small that 70 of them underflow: beyond that, NaN and a number are both right. There are many rows,
    since the rule compares the largest of the errors, and along a single row a loop may be lucky.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(16, 24)), draw(st.integers(1, 70))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    row_shape = shape[:dim] + shape[dim + 1 :]
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))

    def flags() -> Tensor:
        return torch.rand(shape, generator=generator) < density

    def numbers(of: tuple[int, ...] = shape) -> Tensor:
        return torch.randn(of, generator=generator, dtype=dtype)

    def share() -> float | Tensor:
        per_step = 0.7 + 0.3 * torch.rand(shape, generator=generator, dtype=dtype)
        return draw(st.sampled_from([0.8, 0.99, 1.0, per_step]))

    arguments: dict[str, Any] = {"rewards": numbers(), "values": numbers(), "terminateds": flags()}
    arguments |= {"log_pi_target": 0.2 * numbers(), "log_pi_behavior": 0.2 * numbers()}
    arguments |= {"gamma": share(), "lambda_": share()}
    clips = st.sampled_from([0.9, 1.0, 1.0, 1.5, math.inf])
    arguments |= {"rho_bar": draw(clips), "c_bar": draw(clips)}
    if draw(st.booleans()):
        arguments["pg_rho_bar"] = draw(clips)
    if draw(st.booleans()):
        arguments["leak"] = draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    if draw(st.booleans()):
        arguments["truncateds"] = flags()
    continuation = draw(st.sampled_from([None, "bootstrap_values", "next_values", "last_value"]))
    if continuation is not None:
        arguments[continuation] = numbers(row_shape if continuation == "last_value" else shape)
    poison = draw(st.sampled_from([None, None, math.nan, math.inf]))
    for name, x in arguments.items():
        # An infinite discount is not legal, and of an infinite ratio without a clip inf and NaN are both right.
        spared = poison == math.inf and name in ("gamma", "lambda_", "log_pi_target", "log_pi_behavior")
        if poison is not None and isinstance(x, Tensor) and x.is_floating_point() and not spared:
            x[torch.rand(x.shape, generator=generator) < 0.03] = poison
    return arguments, dim


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    outputs = compute(arguments, dim)
    truth, loop = (reference.compute_vtrace(**arguments, time_dim=dim, dtype=d) for d in (torch.float64, torch.float32))
    for output, expected, loop32 in zip(outputs, truth, loop, strict=True):
        assert_within_rule(output, expected, loop32, torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    for output, expected in zip(
        compute(arguments, dim), reference.compute_vtrace(**arguments, time_dim=dim), strict=True
    ):
        assert_within_rule(output, expected, expected, torch.float64, time_dim=dim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    for output, name in zip(compute(case.inputs | case.params), ("targets", "advantages"), strict=True):
        torch.testing.assert_close(output, case.expected[name], rtol=1e-12, atol=1e-12, equal_nan=True)


# The ways in which the advantages are put together: of the state itself, of what lies ahead, of given next values.
WAYS: dict[str, dict[str, Any]] = {
    "one clip": {},
    "a clip of their own": {"pg_rho_bar": 2.0},
    "no clip": {"rho_bar": math.inf, "c_bar": math.inf, "pg_rho_bar": math.inf},
    "leak": {"leak": 0.5},
    "lambda": {"pg_rho_bar": 2.0, "lambda_": 0.8},
    "lambda per step": {"pg_rho_bar": 2.0, "lambda_": torch.full((1, 5), 0.8)},
    "next values": {"next_values": torch.ones(1, 5), "lambda_": 0.8},
    "next values and lambda per step": {"next_values": torch.ones(1, 5), "lambda_": torch.full((1, 5), 0.8)},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("ending", ["terminateds", "truncateds"])
@pytest.mark.parametrize("poisoned", ["rewards", "values", "log_pi_target"])
def test_the_next_episode_reaches_nothing(way: str, poison: float, ending: str, poisoned: str) -> None:
    arguments: dict[str, Any] = {name: torch.ones(1, 5) for name in ("rewards", "values", "log_pi_target")}
    arguments |= {"log_pi_behavior": torch.zeros(1, 5), "terminateds": torch.zeros(1, 5, dtype=torch.bool)}
    if "next_values" not in WAYS[way]:
        arguments["bootstrap_values"] = torch.ones(1, 5)
    arguments[ending] = torch.tensor([[False, True, False, False, False]])
    arguments |= WAYS[way]
    clean = compute(arguments)
    arguments[poisoned][:, 2:] = poison
    for output, before in zip(compute(arguments), clean, strict=True):
        assert torch.equal(output[:, :2], before[:, :2])


@pytest.mark.parametrize("way", WAYS)
def test_what_a_termination_hides_is_not_read(way: str) -> None:
    """Behind the first two steps: the value, the continuation, the discount and the mixing weight."""
    ends = torch.tensor([[True, True, False, False, True]])
    arguments: dict[str, Any] = {name: torch.ones(1, 5) for name in ("rewards", "values", "log_pi_target")}
    arguments |= {"log_pi_behavior": torch.zeros(1, 5), "terminateds": ends, "gamma": torch.full((1, 5), 0.9)}
    arguments |= {name: x.clone() if isinstance(x, Tensor) else x for name, x in WAYS[way].items()}
    if "next_values" not in arguments:
        arguments["bootstrap_values"] = torch.ones(1, 5)
    for name in ("gamma", "lambda_", "bootstrap_values", "next_values"):
        if isinstance(arguments.get(name), Tensor):
            arguments[name][ends] = math.nan
    for output in compute(arguments):
        assert output.isfinite().all()


@pytest.mark.parametrize("way", ["no clip", "one clip", "leak"])
def test_an_infinite_ratio_counts_as_the_formulas_say(way: str) -> None:
    """Without a clip, inf times a sum of two signs has one sign, and the sum of both products is NaN; so of a leak."""
    arguments: dict[str, Any] = {name: torch.zeros(2, 2) for name in ("values", "log_pi_behavior")}
    arguments |= {"terminateds": torch.tensor([[False, True]] * 2), "log_pi_target": torch.tensor([[1000.0, 0.0]] * 2)}
    arguments |= {"rewards": torch.tensor([[1.0, -2.0], [-1.0, 3.0]])}
    expected = reference.compute_vtrace(**(arguments | WAYS[way]))
    assert expected[0].isnan().any() == (way != "one clip")
    assert expected[1].isinf().any() == (way != "one clip")
    for output, x in zip(compute(arguments | WAYS[way]), expected, strict=True):
        torch.testing.assert_close(output, x.float(), equal_nan=True)
