"""n-step returns and their derivatives against the oracle, on drawn inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_triton_core.testing.calls import Draw, assert_obeys_rule
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_returns import compute_n_step_returns, reference
from torch import Tensor

NAN = float("nan")


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

    per_step = 0.3 + 0.7 * torch.rand(shape, generator=generator, dtype=dtype)
    arguments: dict[str, Any] = {"rewards": numbers(), "values": numbers(), "terminateds": flags()}
    arguments["gamma"] = draw(st.sampled_from([0.5, 0.9, 1.0, per_step, per_step]))
    arguments["n"] = draw(st.one_of(st.integers(1, 9), st.integers(1, 2 * most_steps)))
    if draw(st.booleans()):
        arguments["truncateds"] = flags()
    continuation = draw(st.sampled_from([None, "bootstrap_values", "next_values", "last_value"]))
    if continuation is not None:
        arguments[continuation] = numbers(row_shape if continuation == "last_value" else shape)
    if continuation == "next_values" and draw(st.booleans()):
        arguments["values"] = None
    if draw(st.integers(0, 2)) == 0:
        for x in arguments.values():
            if isinstance(x, Tensor) and x.is_floating_point():
                x[torch.rand(x.shape, generator=generator) < 0.03] = NAN
    return arguments, dim


@pytest.mark.filterwarnings("ignore:truncateds without")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(calls())
def test_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    returns = compute_n_step_returns(**arguments, time_dim=dim)
    oracle = reference.compute_n_step_returns
    references = [oracle(**arguments, time_dim=dim, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(returns, references[0], references[1], torch.float32, time_dim=dim)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:truncateds without")
@settings(max_examples=150, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64))
def test_float64_against_the_oracle(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    expected = reference.compute_n_step_returns(**arguments, time_dim=dim)
    returns = compute_n_step_returns(**arguments, time_dim=dim)
    assert_within_rule(returns, expected, expected, torch.float64, time_dim=dim)


def drawn(shape: tuple[int, int], dtype: torch.dtype = torch.float32, per_step: bool = False) -> dict[str, Any]:
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "values", "bootstrap_values")}
    arguments |= {name: draw.flags("random", 0.02) for name in ("terminateds", "truncateds")}
    return arguments | {"gamma": 0.9 + 0.1 * draw.numbers().sigmoid() if per_step else 0.999}


@pytest.mark.parametrize("per_step", [False, True], ids=["one gamma", "gamma per step"])
@pytest.mark.parametrize("n", [1, 5, 8, 63, 64, 1000])
@pytest.mark.parametrize("steps", [1, 64, 300])
def test_long_windows(steps: int, n: int, per_step: bool) -> None:
    arguments = drawn((9, steps), per_step=per_step) | {"n": n}
    references = [reference.compute_n_step_returns(**arguments, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(compute_n_step_returns(**arguments), references[0], references[1], torch.float32)


def test_products_of_many_discounts_do_not_compound() -> None:
    """Near 1, and a large value behind them all; as many steps as there are have a faster oracle."""
    generator = torch.Generator().manual_seed(0)
    rewards, like = (torch.randn(4, 3000, generator=generator) for _ in range(2))
    arguments: dict[str, Any] = {"rewards": rewards, "terminateds": torch.zeros(4, 3000)}
    arguments |= {"gamma": 1 - 1e-4 * like.sigmoid(), "last_value": torch.full((4,), 100.0)}
    references = [reference.compute_discounted_returns(**arguments, dtype=d) for d in (torch.float64, torch.float32)]
    returns = compute_n_step_returns(**arguments, values=like, n=3000)
    assert_within_rule(returns, references[0], references[1], torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_dtypes(dtype: torch.dtype) -> None:
    arguments = drawn((9, 65), dtype, per_step=True)
    references = [reference.compute_n_step_returns(**arguments, dtype=d) for d in (torch.float64, torch.float32)]
    assert_within_rule(compute_n_step_returns(**arguments), references[0], references[1], dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("per_step", [False, True], ids=["one gamma", "gamma per step"])
@pytest.mark.parametrize(("shape", "n"), [((4096, 65), 5), ((127, 64), 64), ((3, 1000), 7), ((1, 1), 1)])
def test_on_a_gpu(shape: tuple[int, int], n: int, per_step: bool, dtype: torch.dtype) -> None:
    arguments = drawn(shape, dtype, per_step) | {"n": n}
    assert_obeys_rule(compute_n_step_returns, reference.compute_n_step_returns, arguments, dtype)


@pytest.mark.filterwarnings("ignore:truncateds without")
@settings(max_examples=80, deadline=None, derandomize=True)
@given(calls(dtype=torch.float64, most_steps=6))
def test_derivatives_are_the_oracles(call: tuple[dict[str, Any], int]) -> None:
    arguments, dim = call
    names = [name for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()]
    for name in names:
        arguments[name] = arguments[name].nan_to_num(0.5)
    weights = torch.randn(arguments["rewards"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients(of: Any) -> tuple[Tensor | None, ...]:
        inputs = [arguments[name].requires_grad_() for name in names]
        return torch.autograd.grad((of(**arguments, time_dim=dim) * weights).sum(), inputs, allow_unused=True)

    ours, expected = gradients(compute_n_step_returns), gradients(reference.compute_n_step_returns)
    for name, a, b in zip(names, ours, expected, strict=True):
        zeros = torch.zeros_like(arguments[name])
        a, b = zeros if a is None else a, zeros if b is None else b
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


HIDDEN: dict[str, Any] = {
    "rewards": torch.ones(1, 6),
    # Two steps on: from step 0 to the end of its episode, from step 4 to the last column.
    "values": torch.tensor([[NAN, NAN, NAN, NAN, 3.0, NAN]]),
    "terminateds": torch.tensor([[False, True, False, False, False, True]]),
    "truncateds": torch.tensor([[False, True, False, False, True, False]]),
    "gamma": torch.tensor([[0.9, NAN, 0.9, 0.9, 0.9, NAN]]),
    "n": 2,
}
CONTINUATIONS = {
    "bootstrap_values": torch.tensor([[NAN, NAN, NAN, NAN, 2.0, NAN]]),
    "next_values": torch.tensor([[NAN, NAN, NAN, 2.0, 2.0, NAN]]),
    "last_value": torch.tensor([NAN]),
}


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("given_value", [*CONTINUATIONS, None])
@pytest.mark.parametrize("one_gamma", [False, True], ids=["gamma per step", "one gamma"])
def test_what_a_boundary_hides_has_no_nan_derivative(given_value: str | None, one_gamma: bool) -> None:
    arguments = {name: x.clone() if isinstance(x, Tensor) else x for name, x in HIDDEN.items()}
    if given_value is not None:
        arguments[given_value] = CONTINUATIONS[given_value].clone()
    if one_gamma:
        arguments["gamma"] = 0.9
    names = [name for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()]
    leaves = [arguments[name].requires_grad_() for name in names]
    returns = compute_n_step_returns(**arguments)
    assert returns.isfinite().all()
    gradients = torch.autograd.grad(returns.sum(), leaves, create_graph=True, allow_unused=True)
    there = [gradient for gradient in gradients if gradient is not None]
    curved = [gradient.square().sum() for gradient in there if gradient.requires_grad]
    seconds = torch.autograd.grad(sum(curved, torch.zeros(())), leaves, allow_unused=True) if curved else ()
    for gradient in (*there, *(second for second in seconds if second is not None)):
        assert gradient.isfinite().all()

    def one(*given: Tensor) -> Tensor:
        return compute_n_step_returns(**(arguments | dict(zip(names, given, strict=True))))

    primals = tuple(leaf.detach() for leaf in leaves)
    _, tangent = torch.func.jvp(one, primals, tuple(torch.ones_like(primal) for primal in primals))
    assert tangent.isfinite().all()


def test_a_boundary_stops_the_gradient() -> None:
    arguments = {name: x.clone() if isinstance(x, Tensor) else x for name, x in HIDDEN.items()} | {"gamma": 0.5}
    arguments["bootstrap_values"] = CONTINUATIONS["bootstrap_values"].clone()
    leaves = [arguments[name].requires_grad_() for name in ("rewards", "values", "bootstrap_values")]
    gradients = torch.autograd.grad(compute_n_step_returns(**arguments).sum(), leaves)
    assert gradients[0].tolist() == [[1.0, 1.5, 1.0, 1.5, 1.5, 1.0]]
    assert gradients[1].tolist() == [[0.0, 0.0, 0.0, 0.0, 0.25, 0.0]]
    assert gradients[2].tolist() == [[0.0, 0.0, 0.0, 0.0, 0.75, 0.0]]
