"""The whole-tensor form of Retrace against the oracle, on drawn inputs."""

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
from rl_triton_retrace import reference
from rl_triton_retrace._torch import coefficients, emit
from rl_triton_retrace.api import _RETRACE
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_retrace.json")


def compute(arguments: dict[str, Any], dim: int = 1) -> tuple[Tensor, ...]:
    """compute_retrace by way of the functions under test."""
    given = {"lambda_": 1.0, "c_bar": 1.0, "rho_bar": 1.0} | arguments
    next_policy = given.get("next_action_probs_target")
    is_row = next_policy is not None and next_policy.dim() == given["rewards"].dim()
    row_values = (next_policy if is_row else None,)
    if is_row:
        del given["next_action_probs_target"]
    fields = tuple(x if isinstance(x := given.get(field.name), Tensor) else None for field in _RETRACE.ends_at.fields)
    numbers = tuple(
        x if isinstance(x := given[field.name], float) else 0.0 for field in _RETRACE.ends_at.fields if field.numbers
    )
    u, decay, cut = coefficients(fields, row_values, numbers, dim)
    return emit(fields, row_values, numbers, scan_steps(u, decay, cut, dim=dim, reverse=True), dim)


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most_steps: int = 70) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN in a third of the calls, and the time axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps, count = draw(st.integers(1, 5)), draw(st.integers(1, most_steps)), draw(st.integers(1, 6))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    row_shape = shape[:dim] + shape[dim + 1 :]
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))

    def flags() -> Tensor:
        return torch.rand(shape, generator=generator) < density

    def numbers(*of: int) -> Tensor:
        return torch.randn(of or shape, generator=generator, dtype=dtype)

    def share() -> float | Tensor:
        return draw(st.sampled_from([0.5, 0.9, 1.0, 0.5 + torch.rand(shape, generator=generator, dtype=dtype) / 2]))

    # Ratios of 0.3 to 2, so that a product of 70 decays stays within range: beyond it, NaN and a number are both right.
    arguments: dict[str, Any] = {
        "rewards": numbers(),
        "action_probs_target": torch.rand(*shape, count, generator=generator, dtype=dtype) / 2 + 0.3,
        "action_probs_behavior": torch.rand(shape, generator=generator, dtype=dtype) / 2 + 0.5,
        "q_values": numbers(),
        "next_q_values_all": numbers(*shape, count),
        "actions": torch.randint(count, shape, generator=generator),
        "terminateds": flags(),
        "gamma": share(),
        "lambda_": share(),
        "c_bar": draw(st.sampled_from([0.9, 1.0, math.inf])),
        "rho_bar": draw(st.sampled_from([0.5, 1.0, math.inf])),
        "truncateds": flags() if draw(st.booleans()) else None,
    }
    of = draw(st.sampled_from([None, shape, row_shape]))
    if of is not None:
        arguments["next_action_probs_target"] = torch.rand(*of, count, generator=generator, dtype=dtype)
    if draw(st.booleans()):
        arguments["values"] = numbers()
    if draw(st.integers(0, 2)) == 0:
        for x in arguments.values():
            if isinstance(x, Tensor) and x.is_floating_point():
                x[torch.rand(x.shape, generator=generator) < 0.03] = math.nan
        actions = arguments["actions"]
        actions[torch.rand(shape, generator=generator) < 0.03] = count
    if draw(st.booleans()):
        impossible = torch.rand(*shape, count, generator=generator) < 0.2
        impossible.scatter_(-1, arguments["actions"].clamp(max=count - 1).unsqueeze(-1), False)
        arguments["action_probs_target"][impossible] = 0.0
        hidden = impossible.movedim(dim, 0)
        # Hidden from the step before, unless that has ended: it has another policy then.
        if of is None and not arguments["terminateds"].any() and arguments["truncateds"] is None:
            arguments["next_q_values_all"].movedim(dim, 0)[:-1][hidden[1:]] = math.inf
    return arguments, dim


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    outputs = compute(arguments, dim)
    expected = reference.compute_retrace(**arguments, time_dim=dim)
    loops = reference.compute_retrace(**arguments, time_dim=dim, dtype=torch.float32)
    for output, reference64, loop in zip(outputs, expected, loops, strict=True):
        assert_within_rule(output, reference64, loop, torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    expected = reference.compute_retrace(**arguments, time_dim=dim)
    for output, reference64 in zip(compute(arguments, dim), expected, strict=True):
        assert_within_rule(output, reference64, reference64, torch.float64, time_dim=dim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    outputs = compute(case.inputs | case.params)
    for output, name in zip(outputs, ("targets", "advantages"), strict=True):
        torch.testing.assert_close(output, case.expected[name], rtol=1e-12, atol=1e-12, equal_nan=True)
