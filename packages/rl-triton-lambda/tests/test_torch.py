"""The whole-tensor form of the lambda-return against the oracle, on drawn inputs."""

from __future__ import annotations

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
from rl_triton_lambda import reference
from rl_triton_lambda._torch import coefficients, emit
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_lambda_returns.json")
PER_STEP = ("rewards", "next_values", "terminateds", "truncateds", "bootstrap_values", "gamma", "lambda_")
NAN = float("nan")


def compute(arguments: dict[str, Any], dim: int = 1, differentiable: bool = False) -> Tensor:
    """compute_lambda_returns by way of the functions under test."""
    fields = tuple(x if isinstance(x := arguments.get(name), Tensor) else None for name in PER_STEP)
    numbers = tuple(0.0 if isinstance(x := arguments[name], Tensor) else x for name in ("gamma", "lambda_"))
    u, decay, cut = coefficients(fields, (), numbers, dim)
    scan = differentiable_scan if differentiable else scan_steps
    return emit(fields, (), numbers, scan(u, decay, cut, dim=dim, reverse=True), dim)[0]


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most_steps: int = 70) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN in a third of the calls, and the time axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(1, 5)), draw(st.integers(1, most_steps))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))

    def flags() -> Tensor:
        return torch.rand(shape, generator=generator) < density

    def numbers() -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    def share() -> float | Tensor:
        return draw(st.sampled_from([0.0, 0.9, 0.99, 1.0, torch.rand(shape, generator=generator, dtype=dtype)]))

    arguments: dict[str, Any] = {"rewards": numbers(), "next_values": numbers(), "terminateds": flags()}
    arguments |= {"gamma": share(), "lambda_": share()}
    if draw(st.booleans()):
        arguments["truncateds"] = flags()
    if draw(st.booleans()):
        arguments["bootstrap_values"] = numbers()
    if draw(st.integers(0, 2)) == 0:
        for x in arguments.values():
            if isinstance(x, Tensor) and x.is_floating_point():
                x[torch.rand(x.shape, generator=generator) < 0.03] = NAN
    return arguments, dim


def without_products_below_range(arguments: dict[str, Any]) -> None:
    """Keep per-step weights where 70 of them do not underflow: beyond that, NaN and a number are both right."""
    for name in ("gamma", "lambda_"):
        x = arguments[name]
        arguments[name] = 0.5 + x / 2 if isinstance(x, Tensor) else max(x, 0.5)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    without_products_below_range(arguments)
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    returns = compute(arguments, dim)
    oracle = reference.compute_lambda_returns
    references = [oracle(**arguments, time_dim=dim, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(returns, references[0], references[1], torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    without_products_below_range(arguments)
    expected = reference.compute_lambda_returns(**arguments, time_dim=dim)
    assert_within_rule(compute(arguments, dim), expected, expected, torch.float64, time_dim=dim)


@pytest.mark.parametrize(("gamma", "lambda_"), [(1.0, 0.999), (0.999, 0.999), (0.9999, 0.9999)])
@pytest.mark.parametrize("per_step", [(), ("gamma",), ("lambda_",), ("gamma", "lambda_")], ids=str)
@pytest.mark.parametrize(("reward", "value"), [(1.0, 0.0), (0.1, 5.0)])
def test_weights_near_one(gamma: float, lambda_: float, per_step: tuple[str, ...], reward: float, value: float) -> None:
    # A return is a sum of many rewards, and of values far from zero whose weights make up about 1: neither may drift.
    shape, generator = (3, 2048), torch.Generator().manual_seed(0)
    rewards, noise = (torch.randn(shape, generator=generator) for _ in range(2))
    arguments: dict[str, Any] = {"rewards": reward * rewards, "next_values": value + noise}
    arguments |= {"terminateds": torch.zeros(shape, dtype=torch.bool), "gamma": gamma, "lambda_": lambda_}
    arguments |= {name: torch.full(shape, arguments[name]) for name in per_step}
    oracle = reference.compute_lambda_returns
    references = [oracle(**arguments, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(compute(arguments), references[0], references[1], torch.float32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    returns = compute(case.inputs | case.params)
    torch.testing.assert_close(returns, case.expected["returns"], rtol=1e-12, atol=1e-12, equal_nan=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64, most_steps=6))
def test_derivatives_are_the_oracles(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    names = [name for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()]
    for name in names:
        arguments[name] = arguments[name].nan_to_num(0.5)
    weights = torch.randn(arguments["rewards"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients(of: Any) -> tuple[Tensor | None, ...]:
        inputs = [arguments[name].requires_grad_() for name in names]
        return torch.autograd.grad((of() * weights).sum(), inputs, allow_unused=True)

    ours = gradients(lambda: compute(arguments, dim, differentiable=True))
    expected = gradients(lambda: reference.compute_lambda_returns(**arguments, time_dim=dim))
    for name, a, b in zip(names, ours, expected, strict=True):
        zeros = torch.zeros_like(arguments[name])
        a, b = zeros if a is None else a, zeros if b is None else b
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


HIDDEN: dict[str, Any] = {
    "rewards": torch.ones(1, 4),
    "next_values": torch.tensor([[1.0, NAN, NAN, NAN]]),
    "terminateds": torch.tensor([[False, True, False, False]]),
    "truncateds": torch.tensor([[False, True, True, False]]),
    "gamma": torch.tensor([[0.9, NAN, 0.9, 0.9]]),
    "lambda_": torch.tensor([[0.9, NAN, NAN, NAN]]),
    "bootstrap_values": torch.tensor([[NAN, NAN, 2.0, 2.0]]),
}


@pytest.mark.parametrize("one_gamma", [False, True], ids=["gamma per step", "one gamma"])
@pytest.mark.parametrize("one_lambda", [False, True], ids=["lambda per step", "one lambda"])
def test_what_a_boundary_hides_has_no_nan_gradient(one_gamma: bool, one_lambda: bool) -> None:
    arguments = {name: x.clone() for name, x in HIDDEN.items()}
    if one_gamma:
        arguments["gamma"] = 0.9
    if one_lambda:
        arguments["lambda_"] = 0.9
    leaves = [x.requires_grad_() for x in arguments.values() if isinstance(x, Tensor) and x.is_floating_point()]
    returns = compute(arguments, differentiable=True)
    assert returns.isfinite().all()
    gradients = torch.autograd.grad(returns.sum(), leaves, create_graph=True)
    # Where gamma and lambda are numbers, nothing but constants is left of the gradients.
    curved = [gradient.square().sum() for gradient in gradients if gradient.requires_grad]
    seconds = torch.autograd.grad(sum(curved, torch.zeros(())), leaves, allow_unused=True) if curved else ()
    for gradient in (*gradients, *(second for second in seconds if second is not None)):
        assert gradient.isfinite().all()

    names = [name for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()]

    def one(*given: Tensor) -> Tensor:
        return compute(arguments | dict(zip(names, given, strict=True)), differentiable=True)

    primals = tuple(leaf.detach() for leaf in leaves)
    _, tangent = torch.func.jvp(one, primals, tuple(torch.ones_like(primal) for primal in primals))
    assert tangent.isfinite().all()


def test_without_bootstrap_values_the_next_values_get_the_gradient() -> None:
    arguments = {name: x.clone() for name, x in HIDDEN.items() if name != "bootstrap_values"}
    arguments |= {"next_values": torch.tensor([[1.0, NAN, 2.0, 3.0]], requires_grad=True), "gamma": 0.5, "lambda_": 0.5}
    (gradient,) = torch.autograd.grad(compute(arguments, differentiable=True).sum(), arguments["next_values"])
    assert gradient.tolist() == [[0.5 * 0.5, 0.0, 0.5, 0.5]]
