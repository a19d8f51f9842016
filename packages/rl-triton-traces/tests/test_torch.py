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
from rl_triton_traces._torch import (
    accumulating_coefficients,
    dutch_coefficients,
    emit,
    replacing_coefficients,
    weighted_emit,
)
from rl_triton_traces.api import KINDS
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_eligibility_traces.json")


def compute(arguments: dict[str, Any], dim: int = 1, differentiable: bool = False) -> Tensor:
    """compute_eligibility_traces by way of the functions under test."""
    kind, ratios = arguments.get("kind", "accumulating"), arguments.get("ratios")
    coefficients = {
        "accumulating": accumulating_coefficients,
        "replacing": replacing_coefficients,
        "dutch": dutch_coefficients,
    }[kind]
    more = () if ratios is None and kind != "dutch" else (ratios,)
    fields = (arguments["gradients"], arguments["dones"], None, None, *more)
    numbers = (arguments["gamma"], arguments["lambda_"], *([arguments["alpha"]] if kind == "dutch" else []))
    row_values = (arguments.get("seed_values"),)
    u, decay, cut = coefficients(fields, row_values, numbers, dim)
    scan = differentiable_scan if differentiable else scan_steps
    emitted = emit if ratios is None else weighted_emit
    return emitted(fields, row_values, numbers, scan(u, decay, cut, dim=dim, reverse=False), dim)[0]


# Below, a product of 70 underflows, and beyond that NaN and a number are both right.
SHARES = st.sampled_from([0.5, 0.9, 0.99, 1.0])


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most_steps: int = 70) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN or inf in a third of the calls, and the time axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(1, 5)), draw(st.integers(1, most_steps))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    dones = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    kind = draw(st.sampled_from(KINDS))
    arguments: dict[str, Any] = {
        "gradients": torch.randn(shape, generator=generator, dtype=dtype),
        "dones": dones,
        "gamma": draw(SHARES),
        "lambda_": draw(SHARES),
        "kind": kind,
    }
    if kind == "dutch":
        arguments["gradients"] = (arguments["gradients"] > 0).to(dtype)
        # With the smallest decay as well, 70 steps stay in range.
        arguments["alpha"] = draw(st.sampled_from([0.0, 0.1, 0.4]))
    elif kind == "replacing":
        share = draw(st.sampled_from([0.0, 0.1, 0.7]))
        arguments["gradients"][torch.rand(shape, generator=generator) >= share] = 0.0
    if kind != "dutch" and draw(st.booleans()):
        # Where a few steps outgrow all others, a float32 loop's largest error is a matter of luck, which no other order
        # of its operations shares: there, only float64 is told by it.
        spreads = [0.0, 0.1] if dtype == torch.float32 else [0.0, 0.3, 1.0]
        noise = draw(st.sampled_from(spreads)) * torch.randn(shape, generator=generator, dtype=dtype)
        arguments["ratios"] = (noise + draw(st.sampled_from([-0.05, 0.0, 0.02]))).exp()
    if draw(st.booleans()):
        arguments["seed_values"] = torch.randn(shape[:dim] + shape[dim + 1 :], generator=generator, dtype=dtype)
    if draw(st.integers(0, 2)) == 0:
        bad = draw(st.sampled_from([math.nan, math.inf]))
        for name in ("gradients", "seed_values", "ratios"):
            # An infinite factor makes NaN of a 0, whichever way round it is multiplied with others.
            factor = name == "ratios" or (name == "gradients" and kind == "dutch")
            if name in arguments and not (factor and bad == math.inf):
                x = arguments[name]
                x[torch.rand(x.shape, generator=generator) < 0.03] = bad
    return arguments, dim


@settings(max_examples=600, deadline=None, derandomize=True)
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


@settings(max_examples=200, deadline=None, derandomize=True)
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


@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64, most_steps=6))
def test_derivatives_are_the_oracles(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    names = [name for name in ("gradients", "seed_values", "ratios") if name in arguments]
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


def test_derivatives_do_not_cross_a_replaced_entry() -> None:
    nan = math.nan
    gradients = torch.tensor([[nan, 1.0, 0.0, 2.0, 0.0]], requires_grad=True)
    ratios = torch.tensor([[4.0, 1.0, 2.0, 0.5, 3.0]], requires_grad=True)
    seed = torch.tensor([nan], requires_grad=True)
    arguments = {"gradients": gradients, "dones": torch.zeros(1, 5, dtype=torch.bool), "seed_values": seed}
    arguments |= {"gamma": 0.5, "lambda_": 1.0, "kind": "replacing"}
    for more in ({}, {"ratios": ratios}):
        traces = compute(arguments | more, differentiable=True)
        assert traces.isnan().tolist() == [[True, False, False, False, False]]
        leaves = [gradients, seed, *more.values()]
        derivatives = torch.autograd.grad(traces[:, 1:].sum(), leaves)
        if not more:
            assert derivatives[0].tolist() == [[0.0, 1.5, 0.0, 1.5, 0.0]]
        else:
            # z is 1, then 2 * 0.5 * 1, then 0.5 * 2, then 3 * 0.5 * 1.
            assert derivatives[0].tolist() == [[0.0, 2.0, 0.0, 0.5 * 2.5, 0.0]]
            assert derivatives[2][0, 1:].tolist() == [2.0, 0.5, 2 * 2.5, 0.5]
        assert derivatives[1].tolist() == [0.0]
        # A NaN that arrives behind it stays there.
        (derivative,) = torch.autograd.grad(
            compute(arguments | more, differentiable=True), gradients, torch.tensor([[1.0, 1.0, 1.0, 1.0, nan]])
        )
        assert derivative[0, 1:].isnan().tolist() == [False, False, True, False]


def test_a_hidden_seed_and_its_ratio_meet_nowhere() -> None:
    """Each NaN in turn, where the first entry replaces the seed: the other's derivative is no NaN."""
    for names in (("seed_values",), ("ratios",)):
        arguments: dict[str, Any] = {"gradients": torch.tensor([[1.0, 0.0]]), "dones": torch.zeros(1, 2).bool()}
        arguments |= {"gamma": 0.5, "lambda_": 1.0, "kind": "replacing"}
        arguments |= {"ratios": torch.ones(1, 2), "seed_values": torch.ones(1)}
        for name in names:
            arguments[name].view(-1)[0] = math.nan
        leaves = [arguments[name].requires_grad_() for name in ("ratios", "seed_values")]
        ratios, seed = torch.autograd.grad(compute(arguments, differentiable=True).sum(), leaves)
        assert seed.tolist() == [0.0]
        if names == ("seed_values",):
            assert ratios.tolist() == [[1.5, 0.5]]


@pytest.mark.parametrize("decay", [0.999, 1.0])
@pytest.mark.parametrize("steps", [512, 20001])
def test_ratios_around_one_over_long_rows(steps: int, decay: float) -> None:
    """Decays that compound to what float32 products of them would not be close to."""
    generator = torch.Generator().manual_seed(0)
    arguments: dict[str, Any] = {
        "gradients": torch.randn(4, steps, generator=generator),
        "dones": torch.zeros(4, steps, dtype=torch.bool),
        "gamma": decay,
        "lambda_": 1.0,
        "ratios": (0.02 * torch.randn(4, steps, generator=generator)).exp(),
    }
    references = [reference.compute_eligibility_traces(**arguments, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(compute(arguments), references[0], references[1], torch.float32)
