"""The whole-tensor form of the prefix sums against the oracle, on drawn inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_triton_core.boundaries import FLAG_CONVENTIONS
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.torch_scan import scan_steps
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_prefix import reference
from rl_triton_prefix._torch import emit, ends_at_coefficients, starts_at_coefficients
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_episodic_prefix_sum.json")


def compute(arguments: dict[str, Any], dim: int = 1, differentiable: bool = False) -> Tensor:
    """compute_episodic_prefix_sum by way of the functions under test."""
    fields = (arguments["inputs"], arguments["dones"])
    row_values = (arguments.get("seed_values"),)
    starts_at = arguments["boundary"] == "starts_at"
    u, decay, cut = (starts_at_coefficients if starts_at else ends_at_coefficients)(fields, row_values, (), dim)
    scan = differentiable_scan if differentiable else scan_steps
    return emit(fields, row_values, (), scan(u, decay, cut, dim=dim, reverse=False), dim)[0]


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most_steps: int = 70) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN or inf in a third of the calls, and the time axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(1, 5)), draw(st.integers(1, most_steps))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    dones = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    arguments: dict[str, Any] = {
        "inputs": torch.randn(shape, generator=generator, dtype=dtype),
        "dones": dones,
        "boundary": draw(st.sampled_from(FLAG_CONVENTIONS)),
    }
    if draw(st.booleans()):
        arguments["seed_values"] = torch.randn(shape[:dim] + shape[dim + 1 :], generator=generator, dtype=dtype)
    if draw(st.integers(0, 2)) == 0:
        bad = draw(st.sampled_from([math.nan, math.inf]))
        for name in ("inputs", "seed_values"):
            if name in arguments:
                x = arguments[name]
                x[torch.rand(x.shape, generator=generator) < 0.03] = bad
    return arguments, dim


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    prefix_sums = compute(arguments, dim)
    references = [
        reference.compute_episodic_prefix_sum(**arguments, time_dim=dim, dtype=d)
        for d in (torch.float64, torch.float32)
    ]
    assert_within_rule(prefix_sums, references[0], references[1], torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    expected = reference.compute_episodic_prefix_sum(**arguments, time_dim=dim)
    assert_within_rule(compute(arguments, dim), expected, expected, torch.float64, time_dim=dim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    prefix_sums = compute(case.inputs | case.params)
    torch.testing.assert_close(prefix_sums, case.expected["prefix_sums"], rtol=1e-12, atol=1e-12, equal_nan=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64, most_steps=6))
def test_derivatives_are_the_oracles(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    names = [name for name in ("inputs", "seed_values") if name in arguments]
    for name in names:
        arguments[name] = arguments[name].nan_to_num(0.5, posinf=0.5)
    weights = torch.randn(arguments["inputs"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def derivatives(of: Any) -> tuple[Tensor, ...]:
        leaves = [arguments[name].requires_grad_() for name in names]
        return torch.autograd.grad((of() * weights).sum(), leaves)

    ours = derivatives(lambda: compute(arguments, dim, differentiable=True))
    expected = derivatives(lambda: reference.compute_episodic_prefix_sum(**arguments, time_dim=dim))
    for name, a, b in zip(names, ours, expected, strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("boundary", "flags"), [("ends_at", [0, 1, 0, 0]), ("starts_at", [0, 0, 1, 0])])
def test_derivatives_do_not_cross_a_boundary(boundary: str, flags: list[int]) -> None:
    inputs = torch.tensor([[1.0, math.nan, 1.0, 1.0]], requires_grad=True)
    seed = torch.tensor([math.nan], requires_grad=True)
    arguments = {"inputs": inputs, "dones": torch.tensor([flags], dtype=torch.bool), "boundary": boundary}
    prefix_sums = compute(arguments | {"seed_values": seed}, differentiable=True)
    assert prefix_sums.isnan().tolist() == [[True, True, False, False]]
    derivatives = torch.autograd.grad(prefix_sums[:, 2:].sum(), (inputs, seed))
    assert derivatives[0].tolist() == [[0.0, 0.0, 2.0, 1.0]]
    assert derivatives[1].tolist() == [0.0]
    # A NaN that arrives from one episode reaches no other either.
    prefix_sums = compute(arguments, differentiable=True)
    (derivative,) = torch.autograd.grad(prefix_sums, inputs, torch.tensor([[1.0, 1.0, math.nan, 1.0]]))
    assert derivative.isnan().tolist() == [[False, False, True, False]]


def test_a_hidden_seed_has_no_derivative() -> None:
    inputs, seed = torch.ones(2, 3, requires_grad=True), torch.tensor([math.nan, 1.0], requires_grad=True)
    dones = torch.tensor([[True, False, False], [False, False, False]])
    arguments = {"inputs": inputs, "dones": dones, "seed_values": seed, "boundary": "starts_at"}
    prefix_sums = compute(arguments, differentiable=True)
    assert prefix_sums.tolist() == [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
    derivatives = torch.autograd.grad(prefix_sums.sum(), (inputs, seed))
    assert derivatives[0].tolist() == [[3.0, 2.0, 1.0]] * 2
    assert derivatives[1].tolist() == [0.0, 3.0]
    # What comes back from the hidden step does not reach the seed, whatever it is.
    weights = torch.tensor([[math.nan, 1.0, 1.0], [1.0, 1.0, 1.0]])
    (derivative,) = torch.autograd.grad(compute(arguments, differentiable=True), seed, weights)
    assert derivative.tolist() == [0.0, 3.0]
