"""compute_n_step_returns inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from rl_triton_core.testing.inside_pytorch import CHECKS_OF_COMPOSITES
from rl_triton_core.testing.integration import (
    assert_forward_mode_agrees,
    assert_gradients_agree,
    assert_jacobians_agree,
    assert_maps,
    assert_records_where_asked,
    assert_traces,
)
from rl_triton_returns import compute_n_step_returns
from torch import Tensor

compute = partial(compute_n_step_returns, n=3)


def drawn() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(2, 9, generator=generator, dtype=torch.float64) for name in ("rewards", "values")}
    return numbers | {"terminateds": torch.rand(2, 9, generator=generator) < 0.2}


OPTIONS: list[tuple[str, ...]] = [(), ("last_value",), ("bootstrap_values",), ("next_values",), ("gamma",)]
OPTIONS += [("gamma", "last_value"), ("gamma", "bootstrap_values"), ("gamma", "next_values")]


@pytest.mark.parametrize("n", [1, 3, 8, 20])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_of_every_real_input(options: tuple[str, ...], n: int) -> None:
    given = drawn()
    fixed = {"terminateds": given.pop("terminateds")}
    generator = torch.Generator().manual_seed(1)
    for name in options:
        shape = (2,) if name == "last_value" else (2, 9)
        given[name] = torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1
    if "bootstrap_values" in options or "next_values" in options:
        fixed["truncateds"] = torch.rand(2, 9, generator=generator) < 0.2

    def function(*tensors: Tensor) -> Tensor:
        return compute_n_step_returns(**dict(zip(given, tensors, strict=True)), **fixed, n=n)

    leaves = [x.requires_grad_() for x in given.values()]
    assert torch.autograd.gradcheck(function, leaves)
    if "gamma" in options:
        # Without it the returns are linear, and have no second derivative.
        assert torch.autograd.gradgradcheck(function, leaves)


def test_transforms() -> None:
    for name in ("rewards", "values"):
        assert_gradients_agree(lambda x, name=name: compute(**(drawn() | {name: x})), drawn()[name])  # type: ignore[misc]


NAMES = ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "next_values", "last_value", "gamma")


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("more", ["nothing", "truncateds", "last_value"])
@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_every_argument(name: str, more: str) -> None:
    given = drawn()
    generator = torch.Generator().manual_seed(3)
    if more == "truncateds":
        given["truncateds"] = torch.rand(2, 9, generator=generator) < 0.3
    if more == "last_value" and name not in ("bootstrap_values", "next_values"):
        given["last_value"] = torch.rand(2, generator=generator, dtype=torch.float64)
    shape = (3, 2) if name == "last_value" else (3, 2, 9)
    many = torch.rand(shape, generator=generator, dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3
    assert_maps(lambda x: compute(**(given | {name: x})), many)


@pytest.mark.parametrize("name", ["rewards", "values", "bootstrap_values", "next_values", "last_value", "gamma"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given: dict[str, Any] = drawn()
    generator = torch.Generator().manual_seed(4)
    x = torch.rand((2,) if name == "last_value" else (2, 9), generator=generator, dtype=torch.float64)
    assert_forward_mode_agrees(lambda x: compute(**(given | {name: x})), x)


def test_jacobians_and_hessians() -> None:
    given = drawn()
    assert_jacobians_agree(lambda x: compute(**(given | {"rewards": x})), given["rewards"])


def test_modes_and_parameters() -> None:
    for name in ("rewards", "values"):
        assert_records_where_asked(compute, drawn(), name)


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    returns = compute(**shapes)
    assert returns.is_meta
    assert returns.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = [x if dim else x.t().contiguous() for x in drawn().values()]

    def one(rewards: Tensor, values: Tensor, terminateds: Tensor) -> Tensor:
        return compute(rewards, values, terminateds, ~terminateds, bootstrap_values=rewards, time_dim=dim)

    assert_traces(one, given)
    assert_traces(lambda *tensors: compute(*tensors, time_dim=dim), given)


CALLS = (
    ("rewards", "values", "terminateds", "last_value"),
    ("rewards", "values", "terminateds", "truncateds"),
    ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS_OF_COMPOSITES
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(compute, names)
