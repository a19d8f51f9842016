"""The whole-tensor form for continuous actions against the oracle, on drawn inputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_triton_core.engine.torch_scan import scan_steps
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_retrace import reference
from rl_triton_retrace.continuous import _ALGORITHMS
from torch import Tensor

TRACES = tuple(_ALGORITHMS)


def compute(arguments: dict[str, Any], dim: int = 1) -> tuple[Tensor, ...]:
    """compute_retrace_continuous by way of the functions under test."""
    given = {"lambda_": 1.0, "c_bar": 1.0, "rho_bar": 1.0, "trace": "retrace"} | arguments
    algorithm = _ALGORITHMS[given["trace"]]
    if given["trace"] == "importance":
        given["c_bar"] = math.inf
    fields = tuple(x if isinstance(x := given.get(field.name), Tensor) else None for field in algorithm.fields)
    numbers = tuple(
        x if isinstance(x := given[field.name], float) else 0.0 for field in algorithm.fields if field.numbers
    )
    u, decay, cut = algorithm.coefficients(fields, (), numbers, dim)
    y = scan_steps(u, decay, cut, dim=dim, reverse=True)
    return algorithm.emit(fields, (), numbers, y, dim)


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN in a third of the calls, and the time axis.

    Traces of 0.3 to 2, so that a product of 70 decays stays within range: beyond it, NaN and a number are both right.
    There are many rows, since the rule compares the largest of the errors, and along a single row a loop may be lucky.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(16, 24)), draw(st.integers(1, 70))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    trace = draw(st.sampled_from(TRACES))

    def flags() -> Tensor:
        return torch.rand(shape, generator=generator) < density

    def numbers() -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    def log_of(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(shape, generator=generator, dtype=dtype)).log()

    def share() -> float | Tensor:
        return draw(st.sampled_from([0.5, 0.9, 1.0, 0.5 + torch.rand(shape, generator=generator, dtype=dtype) / 2]))

    arguments: dict[str, Any] = {
        "log_pi_target": log_of(0.5, 1.1),
        "log_pi_behavior": log_of(0.7, 1.0),
        "q_values": numbers(),
        "next_values": numbers(),
        "rewards": numbers(),
        "terminateds": flags(),
        "truncateds": flags() if draw(st.booleans()) else None,
        "gamma": share(),
        "lambda_": share(),
        "c_bar": draw(st.sampled_from([0.9, 1.0, math.inf])),
        "rho_bar": draw(st.sampled_from([0.5, 1.0, math.inf])),
        "trace": trace,
    }
    if draw(st.booleans()):
        arguments["values"] = numbers()
    if trace in ("harutyunyan", "tree_backup") and draw(st.booleans()):
        arguments["log_pi_behavior"] = None
        if trace == "harutyunyan":
            arguments["log_pi_target"] = None
    if draw(st.integers(0, 2)) == 0:
        for x in arguments.values():
            if isinstance(x, Tensor) and x.is_floating_point():
                x[torch.rand(x.shape, generator=generator) < 0.03] = math.nan
    return arguments, dim


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    expected = reference.compute_retrace_continuous(**arguments, time_dim=dim)
    loops = reference.compute_retrace_continuous(**arguments, time_dim=dim, dtype=torch.float32)
    for output, reference64, loop in zip(compute(arguments, dim), expected, loops, strict=True):
        assert_within_rule(output, reference64, loop, torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    expected = reference.compute_retrace_continuous(**arguments, time_dim=dim)
    for output, reference64 in zip(compute(arguments, dim), expected, strict=True):
        assert_within_rule(output, reference64, reference64, torch.float64, time_dim=dim)


@pytest.mark.parametrize("ending", ["terminateds", "truncateds"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1000.0])
@pytest.mark.parametrize("poisoned", ["rewards", "q_values", "log_pi_target", "log_pi_behavior", "next_values"])
@pytest.mark.parametrize("trace", TRACES)
def test_the_next_episode_reaches_nothing(trace: str, poisoned: str, poison: float, ending: str) -> None:
    """Neither NaN nor a ratio that overflows."""
    names = ("log_pi_target", "log_pi_behavior", "q_values", "next_values", "rewards")
    arguments: dict[str, Any] = {name: torch.ones(1, 5) for name in names} | {"gamma": 0.9, "trace": trace}
    arguments |= {"terminateds": torch.zeros(1, 5, dtype=torch.bool), "truncateds": torch.zeros(1, 5, dtype=torch.bool)}
    arguments[ending][:, 1] = True
    for values in (None, torch.ones(1, 5)):
        arguments["values"] = values
        clean = compute(arguments)
        damaged = arguments | {poisoned: torch.where(torch.arange(5) < 2, arguments[poisoned], poison)}
        for output, before in zip(compute(damaged), clean, strict=True):
            assert before.isfinite().all()
            assert torch.equal(output[:, :2], before[:, :2])


@pytest.mark.parametrize("trace", TRACES)
def test_what_a_termination_hides_is_not_read(trace: str) -> None:
    names = ("log_pi_target", "log_pi_behavior", "q_values", "next_values", "rewards")
    arguments: dict[str, Any] = {name: torch.ones(1, 5) for name in names} | {"trace": trace}
    ends = torch.tensor([[True, False, True, False, True]])
    arguments |= {"terminateds": ends, "gamma": torch.full((1, 5), 0.9), "lambda_": torch.full((1, 5), 0.9)}
    for name in ("next_values", "gamma", "lambda_"):
        arguments[name] = torch.where(ends, math.nan, arguments[name])
    for output in compute(arguments):
        assert output.isfinite().all()


def test_an_unclipped_ratio_is_infinite_and_a_clipped_one_is_its_bound() -> None:
    names = ("log_pi_behavior", "q_values", "next_values")
    arguments: dict[str, Any] = {name: torch.zeros(1, 2) for name in names} | {"gamma": 1.0}
    arguments |= {"rewards": torch.ones(1, 2), "terminateds": torch.tensor([[False, True]])}
    arguments["log_pi_target"] = torch.full((1, 2), 1000.0)
    targets, advantages = compute(arguments | {"rho_bar": 3.0})
    assert targets.tolist() == [[2.0, 1.0]]
    assert advantages.tolist() == [[6.0, 3.0]]
    assert compute(arguments | {"trace": "importance"})[0].tolist() == [[math.inf, 1.0]]
    assert compute(arguments | {"c_bar": math.inf, "rho_bar": math.inf})[1].tolist() == [[math.inf, math.inf]]
