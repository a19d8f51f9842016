"""The whole-tensor form of GAE against the oracle, on drawn inputs."""

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
from rl_triton_gae import reference
from rl_triton_gae._torch import coefficients, emit
from torch import Tensor

CASES = load_cases(Path(__file__).parent / "cases" / "compute_gae.json")
PER_STEP = ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "next_values", "gamma", "lambda_")


def compute(arguments: dict[str, Any], dim: int = 1, differentiable: bool = False) -> Tensor:
    """compute_gae by way of the three functions under test."""
    fields = tuple(x if isinstance(x := arguments.get(name), Tensor) else None for name in PER_STEP)
    numbers = tuple(0.0 if isinstance(x := arguments[name], Tensor) else x for name in ("gamma", "lambda_"))
    row_values = (arguments.get("last_value"),)
    u, decay, cut = coefficients(fields, row_values, numbers, dim)
    scan = differentiable_scan if differentiable else scan_steps
    return emit(fields, row_values, numbers, scan(u, decay, cut, dim=dim, reverse=True), dim)[0]


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32, most_steps: int = 70) -> tuple[dict[str, Any], int]:
    """Arguments of every combination, with NaN in a third of the calls, and the time axis."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, steps = draw(st.integers(1, 5)), draw(st.integers(1, most_steps))
    shape, dim = draw(st.sampled_from([((rows, steps), 1), ((steps, rows), 0), ((rows, steps, 2), 1)]))
    row_shape = shape[:dim] + shape[dim + 1 :]
    density = draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))

    def flags() -> Tensor:
        return torch.rand(shape, generator=generator) < density

    def numbers(of: tuple[int, ...] = shape) -> Tensor:
        return torch.randn(of, generator=generator, dtype=dtype)

    def share() -> float | Tensor:
        return draw(st.sampled_from([0.0, 0.9, 0.99, 1.0, torch.rand(shape, generator=generator, dtype=dtype)]))

    arguments: dict[str, Any] = {"rewards": numbers(), "values": numbers(), "terminateds": flags()}
    arguments |= {"gamma": share(), "lambda_": share()}
    if draw(st.booleans()):
        arguments["truncateds"] = flags()
    continuation = draw(st.sampled_from([None, "bootstrap_values", "next_values", "last_value"]))
    if continuation is not None:
        arguments[continuation] = numbers(row_shape if continuation == "last_value" else shape)
    if draw(st.integers(0, 2)) == 0:
        for x in arguments.values():
            if isinstance(x, Tensor) and x.is_floating_point():
                x[torch.rand(x.shape, generator=generator) < 0.03] = float("nan")
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
    advantages = compute(arguments, dim)
    references = [reference.compute_gae(**arguments, time_dim=dim, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(advantages, references[0], references[1], torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    without_products_below_range(arguments)
    expected = reference.compute_gae(**arguments, time_dim=dim)
    assert_within_rule(compute(arguments, dim), expected, expected, torch.float64, time_dim=dim)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_worked_values(case: Case) -> None:
    advantages = compute(case.inputs | case.params)
    torch.testing.assert_close(advantages, case.expected["advantages"], rtol=1e-12, atol=1e-12, equal_nan=True)


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
    expected = gradients(lambda: reference.compute_gae(**arguments, time_dim=dim))
    for name, a, b in zip(names, ours, expected, strict=True):
        zeros = torch.zeros_like(arguments[name])
        a, b = zeros if a is None else a, zeros if b is None else b
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def test_what_a_boundary_hides_has_no_nan_gradient() -> None:
    nan = float("nan")
    terminateds = torch.tensor([[False, True, False, False]])
    truncateds = torch.tensor([[False, False, True, False]])
    arguments: dict[str, Any] = {
        "rewards": torch.ones(1, 4),
        "values": torch.ones(1, 4),
        "terminateds": terminateds,
        "truncateds": truncateds,
        "gamma": torch.tensor([[0.9, nan, 0.9, 0.9]]),
        "lambda_": torch.tensor([[0.9, nan, nan, nan]]),
        "bootstrap_values": torch.tensor([[nan, nan, 2.0, 2.0]]),
    }
    leaves = [x.requires_grad_() for x in arguments.values() if isinstance(x, Tensor) and x.is_floating_point()]
    advantages = compute(arguments, differentiable=True)
    assert advantages.isfinite().all()
    for gradient in torch.autograd.grad(advantages.sum(), leaves):
        assert gradient.isfinite().all()


def test_nan_discounts_make_nan_of_a_continuation_of_zero() -> None:
    ones, gamma = torch.ones(1, 2), torch.tensor([[0.9, float("nan")]])
    flags = torch.zeros(1, 2, dtype=torch.bool)
    arguments: dict[str, Any] = {"rewards": ones, "values": ones, "terminateds": flags, "gamma": gamma, "lambda_": 0.9}
    for advantages in (compute(arguments), reference.compute_gae(**arguments)):
        assert advantages.isnan().all()


@pytest.mark.parametrize("hidden", ["bootstrap_values", "next_values"])
def test_a_hidden_continuation_has_no_nan_gradient(hidden: str) -> None:
    continuation = torch.full((1, 3), float("nan"), requires_grad=True)
    rewards = torch.ones(1, 3, requires_grad=True)
    arguments: dict[str, Any] = {
        "rewards": rewards,
        "values": torch.ones(1, 3),
        "terminateds": torch.ones(1, 3, dtype=torch.bool),
        "gamma": 0.9,
        "lambda_": 0.9,
    }
    advantages = compute(arguments | {hidden: continuation}, differentiable=True)
    gradients = torch.autograd.grad(advantages.sum(), (rewards, continuation))
    assert gradients[0].tolist() == [[1.0] * 3]
    assert gradients[1].tolist() == [[0.0] * 3]
