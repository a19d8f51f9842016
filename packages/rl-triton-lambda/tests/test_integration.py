"""compute_lambda_returns inside PyTorch: gradients, transforms, modes, compilation."""

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
from rl_triton_lambda import compute_lambda_returns, reference
from torch import Tensor


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(2, 9, generator=generator, dtype=dtype) for name in ("rewards", "next_values")}
    return numbers | {"terminateds": torch.rand(2, 9, generator=generator) < 0.2}


GRADIENTS = [(), ("bootstrap_values",), ("gamma",), ("lambda_",), ("gamma", "lambda_", "bootstrap_values")]


@pytest.mark.parametrize("options", GRADIENTS, ids=str)
@pytest.mark.parametrize("truncated", [False, True], ids=["", "truncated"])
def test_gradients_of_every_real_input(options: tuple[str, ...], truncated: bool) -> None:
    fixed = {"terminateds": drawn()["terminateds"]}
    if truncated:
        fixed["truncateds"] = torch.rand(2, 9, generator=torch.Generator().manual_seed(2)) < 0.2
    names, tensors = ["rewards", "next_values", *options], [drawn()["rewards"], drawn()["next_values"]]
    generator = torch.Generator().manual_seed(1)
    tensors += [torch.rand(2, 9, generator=generator, dtype=torch.float64) * 0.8 + 0.1 for _ in options]

    def function(*given: Tensor) -> Tensor:
        return compute_lambda_returns(**dict(zip(names, given, strict=True)), **fixed)

    leaves = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_transforms() -> None:
    given = drawn()
    assert_gradients_agree(lambda x: compute_lambda_returns(**(given | {"rewards": x})), given["rewards"])


VMAPPED = ("rewards", "next_values", "terminateds", "truncateds", "bootstrap_values", "gamma", "lambda_")


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_over_every_argument(name: str) -> None:
    given = drawn()
    many = torch.rand(3, 2, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3
    assert_maps(lambda x: compute_lambda_returns(**(given | {name: x})), many)


@pytest.mark.parametrize("name", ["rewards", "next_values", "bootstrap_values", "gamma", "lambda_"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given: dict[str, Any] = drawn()
    x = torch.rand(2, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert_forward_mode_agrees(lambda x: compute_lambda_returns(**(given | {name: x})), x)


def test_jacobians_and_hessians() -> None:
    given = drawn()
    assert_jacobians_agree(lambda x: compute_lambda_returns(**(given | {"next_values": x})), given["next_values"])


def test_modes_and_parameters() -> None:
    assert_records_where_asked(compute_lambda_returns, drawn(), "next_values")


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    returns = compute_lambda_returns(**shapes)
    assert returns.is_meta
    assert returns.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = [x if dim else x.t().contiguous() for x in drawn().values()]

    def one(rewards: Tensor, next_values: Tensor, terminateds: Tensor) -> Tensor:
        return compute_lambda_returns(rewards, next_values, terminateds, terminateds, time_dim=dim)

    assert_traces(one, given)
    assert_traces(lambda *tensors: compute_lambda_returns(*tensors, time_dim=dim), given)


CALLS = (
    ("rewards", "next_values", "terminateds"),
    ("rewards", "next_values", "terminateds", "truncateds", "bootstrap_values", "gamma", "lambda_"),
)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(compute_lambda_returns, names)


@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_flags_at_starts(names: tuple[str, ...]) -> None:
    assert_flags_at_starts_agree(compute_lambda_returns, names)


@CHECKS
def test_inside_pytorch_with_flags_at_starts(check: Callable[..., None]) -> None:
    check(FlagsAtStarts(compute_lambda_returns), (*CALLS[1], "next_start", "next_start_truncated"))


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_transparent_steps(names: tuple[str, ...]) -> None:
    # The first is the one whose layout the outputs have.
    names = ("rewards", *(name for name in names if name != "rewards"))
    assert_steps_are_transparent(compute_lambda_returns, reference.compute_lambda_returns, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_a_mask(check: Callable[..., None]) -> None:
    check(compute_lambda_returns, (*CALLS[1], "mask"))
