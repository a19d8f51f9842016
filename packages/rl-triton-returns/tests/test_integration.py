"""compute_discounted_returns inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import (
    assert_flags_at_starts_agree,
    assert_forward_mode_agrees,
    assert_gradients_agree,
    assert_jacobians_agree,
    assert_maps,
    assert_records_where_asked,
    assert_steps_are_transparent,
    assert_traces,
)
from rl_triton_returns import compute_discounted_returns, reference
from torch import Tensor


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(2, 9, generator=generator, dtype=dtype)
    return {"rewards": rewards, "terminateds": torch.rand(2, 9, generator=generator) < 0.2}


GRADIENTS = [(), ("last_value",), ("bootstrap_values",), ("gamma",), ("gamma", "last_value")]


@pytest.mark.parametrize("options", [*GRADIENTS, ("gamma", "bootstrap_values")], ids=str)
def test_gradients_of_every_real_input(options: tuple[str, ...]) -> None:
    fixed = {"terminateds": drawn()["terminateds"]}
    names, tensors = ["rewards", *options], [drawn()["rewards"]]
    generator = torch.Generator().manual_seed(1)
    for name in options:
        shape = (2,) if name == "last_value" else (2, 9)
        tensors.append(torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1)
    if "bootstrap_values" in options:
        fixed["truncateds"] = torch.rand(2, 9, generator=generator) < 0.2

    def function(*given: Tensor) -> Tensor:
        return compute_discounted_returns(**dict(zip(names, given, strict=True)), **fixed)

    leaves = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_transforms() -> None:
    given = drawn()
    assert_gradients_agree(lambda x: compute_discounted_returns(**(given | {"rewards": x})), given["rewards"])


VMAPPED = ("rewards", "terminateds", "truncateds", "bootstrap_values", "last_value", "gamma")


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("more", ["nothing", "truncateds", "last_value"])
@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_over_every_argument(name: str, more: str) -> None:
    given = drawn()
    generator = torch.Generator().manual_seed(3)
    if more == "truncateds":
        given["truncateds"] = torch.rand(2, 9, generator=generator) < 0.3
    if more == "last_value" and name != "bootstrap_values":
        given["last_value"] = torch.rand(2, generator=generator, dtype=torch.float64)
    shape = (3, 2) if name == "last_value" else (3, 2, 9)
    many = torch.rand(shape, generator=generator, dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3
    assert_maps(lambda x: compute_discounted_returns(**(given | {name: x})), many)


@pytest.mark.parametrize("name", ["rewards", "bootstrap_values", "last_value", "gamma"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given: dict[str, Any] = drawn()
    generator = torch.Generator().manual_seed(4)
    x = torch.rand((2,) if name == "last_value" else (2, 9), generator=generator, dtype=torch.float64)
    assert_forward_mode_agrees(lambda x: compute_discounted_returns(**(given | {name: x})), x)


def test_jacobians_and_hessians() -> None:
    given = drawn()
    assert_jacobians_agree(lambda x: compute_discounted_returns(**(given | {"rewards": x})), given["rewards"])


def test_modes_and_parameters() -> None:
    assert_records_where_asked(compute_discounted_returns, drawn(), "rewards")


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    returns = compute_discounted_returns(**shapes)
    assert returns.is_meta
    assert returns.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = [x if dim else x.t().contiguous() for x in drawn().values()]

    def one(rewards: Tensor, terminateds: Tensor) -> Tensor:
        return compute_discounted_returns(rewards, terminateds, ~terminateds, bootstrap_values=rewards, time_dim=dim)

    assert_traces(one, given)
    assert_traces(lambda *tensors: compute_discounted_returns(*tensors, time_dim=dim), given)


CALLS = (
    ("rewards", "terminateds", "last_value"),
    ("rewards", "terminateds", "truncateds"),
    ("rewards", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(compute_discounted_returns, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_flags_at_starts(names: tuple[str, ...]) -> None:
    assert_flags_at_starts_agree(compute_discounted_returns, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_flags_at_starts(check: Callable[..., None]) -> None:
    check(FlagsAtStarts(compute_discounted_returns), (*CALLS[1], "next_start", "next_start_truncated"))


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_transparent_steps(names: tuple[str, ...]) -> None:
    # The first is the one whose layout the outputs have.
    names = ("rewards", *(name for name in names if name != "rewards"))
    assert_steps_are_transparent(compute_discounted_returns, reference.compute_discounted_returns, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_a_mask(check: Callable[..., None]) -> None:
    check(compute_discounted_returns, (*CALLS[1], "mask"))
