"""The whole-tensor form of the traces against the oracle, on drawn inputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.torch_scan import scan_steps
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_traces import reference
from rl_triton_traces._torch import coefficients, emit
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_eligibility_traces.json")


def compute(arguments: dict[str, Any], dim: int = 1, differentiable: bool = False) -> Tensor:
    """compute_eligibility_traces by way of the functions under test."""
    fields = (arguments["gradients"], arguments["dones"], None, None)
    numbers = (arguments["gamma"], arguments["lambda_"])
    row_values = (arguments.get("seed_values"),)
    u, decay, cut = coefficients(fields, row_values, numbers, dim)
    scan = differentiable_scan if differentiable else scan_steps
    return emit(fields, row_values, numbers, scan(u, decay, cut, dim=dim, reverse=False), dim)[0]


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most_steps: int = 70) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN or inf in a third of the calls, and the time axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(1, 5)), draw(st.integers(1, most_steps))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    dones = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    # Below, a product of 70 underflows, and beyond that NaN and a number are both right.
    share = st.sampled_from([0.5, 0.9, 0.99, 1.0])
    arguments: dict[str, Any] = {
        "gradients": torch.randn(shape, generator=generator, dtype=dtype),
        "dones": dones,
        "gamma": draw(share),
        "lambda_": draw(share),
    }
    if draw(st.booleans()):
        arguments["seed_values"] = torch.randn(shape[:dim] + shape[dim + 1 :], generator=generator, dtype=dtype)
    if draw(st.integers(0, 2)) == 0:
        bad = draw(st.sampled_from([math.nan, math.inf]))
        for name in ("gradients", "seed_values"):
            if name in arguments:
                x = arguments[name]
                x[torch.rand(x.shape, generator=generator) < 0.03] = bad
    return arguments, dim


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    traces = compute(arguments, dim)
    references = [
        reference.compute_eligibility_traces(**arguments, time_dim=dim, dtype=d) for d in (torch.float64, torch.float32)
    ]
    assert_within_rule(traces, references[0], references[1], torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    expected = reference.compute_eligibility_traces(**arguments, time_dim=dim)
    assert_within_rule(compute(arguments, dim), expected, expected, torch.float64, time_dim=dim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    traces = compute(case.inputs | case.params)
    torch.testing.assert_close(traces, case.expected["traces"], rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("gamma", "lambda_"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_without_decay_nothing_is_left(gamma: float, lambda_: float) -> None:
    gradients, seed = torch.randn(3, 9), torch.randn(3)
    arguments = {"gradients": gradients, "dones": torch.zeros(3, 9, dtype=torch.bool), "seed_values": seed}
    assert torch.equal(compute(arguments | {"gamma": gamma, "lambda_": lambda_}), gradients)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64, most_steps=6))
def test_derivatives_are_the_oracles(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    names = [name for name in ("gradients", "seed_values") if name in arguments]
    for name in names:
        arguments[name] = arguments[name].nan_to_num(0.5, posinf=0.5)
    weights = torch.randn(arguments["gradients"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def derivatives(of: Any) -> tuple[Tensor, ...]:
        inputs = [arguments[name].requires_grad_() for name in names]
        return torch.autograd.grad((of() * weights).sum(), inputs)

    ours = derivatives(lambda: compute(arguments, dim, differentiable=True))
    expected = derivatives(lambda: reference.compute_eligibility_traces(**arguments, time_dim=dim))
    for name, a, b in zip(names, ours, expected, strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


def test_derivatives_do_not_cross_a_boundary() -> None:
    gradients = torch.tensor([[1.0, math.nan, 1.0, 1.0]], requires_grad=True)
    seed = torch.tensor([math.nan], requires_grad=True)
    arguments = {"gradients": gradients, "dones": torch.tensor([[False, True, False, False]]), "seed_values": seed}
    traces = compute(arguments | {"gamma": 0.5, "lambda_": 1.0}, differentiable=True)
    assert traces.isnan().tolist() == [[True, True, False, False]]
    derivatives = torch.autograd.grad(traces[:, 2:].sum(), (gradients, seed))
    assert derivatives[0].tolist() == [[0.0, 0.0, 1.5, 1.0]]
    assert derivatives[1].tolist() == [0.0]
    # A NaN that arrives from one episode reaches no other either.
    arguments["seed_values"] = None
    traces = compute(arguments | {"gamma": 0.5, "lambda_": 1.0}, differentiable=True)
    (derivative,) = torch.autograd.grad(traces, gradients, torch.tensor([[1.0, 1.0, math.nan, 1.0]]))
    assert derivative.isnan().tolist() == [[False, False, True, False]]
