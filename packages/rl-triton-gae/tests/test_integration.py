"""compute_gae inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from rl_triton_gae import compute_gae, reference
from torch import Tensor


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(2, 9, generator=generator, dtype=dtype) for name in ("rewards", "values")}
    return numbers | {"terminateds": torch.rand(2, 9, generator=generator) < 0.2}


@pytest.mark.parametrize("option", ["last_value", "bootstrap_values", "next_values", "gamma", "lambda_", "both"])
def test_gradients_of_every_real_input(option: str) -> None:
    fixed = {"terminateds": drawn()["terminateds"]}
    names, tensors = ["rewards", "values"], [drawn()["rewards"], drawn()["values"]]
    for name in ("gamma", "lambda_") if option == "both" else (option,):
        names.append(name)
        shape = (2,) if name == "last_value" else (2, 9)
        tensors.append(torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.8 + 0.1)
    if option in ("bootstrap_values", "next_values"):
        fixed["truncateds"] = torch.rand(2, 9, generator=torch.Generator().manual_seed(2)) < 0.2

    def function(*given: Tensor) -> Tensor:
        return compute_gae(**dict(zip(names, given, strict=True)), **fixed)

    leaves = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_transforms() -> None:
    given = drawn()
    assert_gradients_agree(lambda x: compute_gae(**(given | {"rewards": x})), given["rewards"])


VMAPPED = ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "next_values", "last_value", "gamma")


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_over_every_argument(name: str) -> None:
    given = drawn()
    generator = torch.Generator().manual_seed(3)
    shape = (3, 2) if name == "last_value" else (3, 2, 9)
    many = torch.rand(shape, generator=generator, dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3
    assert_maps(lambda x: compute_gae(**(given | {name: x})), many)


@pytest.mark.parametrize("name", ["rewards", "values", "bootstrap_values", "last_value", "gamma", "lambda_"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given: dict[str, Any] = drawn()
    generator = torch.Generator().manual_seed(4)
    x = torch.rand((2,) if name == "last_value" else (2, 9), generator=generator, dtype=torch.float64)
    assert_forward_mode_agrees(lambda x: compute_gae(**(given | {name: x})), x)


def test_jacobians_and_hessians() -> None:
    given = drawn()
    assert_jacobians_agree(lambda x: compute_gae(**(given | {"values": x})), given["values"])


def test_modes_and_parameters() -> None:
    assert_records_where_asked(compute_gae, drawn(), "values")


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    advantages = compute_gae(**shapes)
    assert advantages.is_meta
    assert advantages.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = [x if dim else x.t().contiguous() for x in drawn().values()]
    assert_traces(lambda *tensors: compute_gae(*tensors, time_dim=dim), given)


CALLS = (
    ("rewards", "values", "terminateds"),
    ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "gamma"),
    ("rewards", "values", "terminateds", "truncateds"),
    ("rewards", "values", "terminateds", "last_value", "lambda_"),
)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(compute_gae, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_flags_at_starts(names: tuple[str, ...]) -> None:
    assert_flags_at_starts_agree(compute_gae, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_flags_at_starts(check: Callable[..., None]) -> None:
    check(FlagsAtStarts(compute_gae), (*CALLS[1], "next_start", "next_start_truncated"))


@pytest.mark.parametrize("names", CALLS[1:2], ids="-".join)
@CHECKS
def test_inside_pytorch_with_targets(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(partial(compute_gae, return_targets=True), names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_transparent_steps(names: tuple[str, ...]) -> None:
    # The first is the one whose layout the outputs have.
    names = ("rewards", *(name for name in names if name != "rewards"))
    assert_steps_are_transparent(compute_gae, reference.compute_gae, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_a_mask(check: Callable[..., None]) -> None:
    check(compute_gae, (*CALLS[1], "mask"))
