"""compute_episodic_prefix_sum inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core.boundaries import FLAG_CONVENTIONS
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import (
    assert_forward_mode_agrees,
    assert_gradients_agree,
    assert_jacobians_agree,
    assert_maps,
    assert_records_where_asked,
    assert_traces,
)
from rl_triton_prefix import compute_episodic_prefix_sum
from torch import Tensor


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Arguments in the order of the function's tensors."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 9, generator=generator, dtype=dtype)
    dones = torch.rand(2, 9, generator=generator) < 0.2
    # Under one convention this hides the seed of one row.
    dones[0, 0] = True
    return {"inputs": inputs, "dones": dones, "seed_values": torch.randn(2, generator=generator, dtype=dtype)}


@pytest.fixture(params=FLAG_CONVENTIONS)
def sums_of(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """The function under one of its flag conventions."""
    boundary = request.param

    def sums_of(inputs: Tensor, dones: Tensor, seed_values: Tensor | None = None, **options: Any) -> Tensor:
        return compute_episodic_prefix_sum(inputs, dones, seed_values, boundary, **options)

    return sums_of


@pytest.mark.parametrize("names", [("inputs",), ("seed_values",), ("inputs", "seed_values")], ids="-".join)
def test_gradients_of_every_real_input(sums_of: Callable[..., Tensor], names: tuple[str, ...]) -> None:
    given = drawn()

    def function(*leaves: Tensor) -> Tensor:
        return sums_of(**(given | dict(zip(names, leaves, strict=True))))

    leaves = [given[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(function, leaves)
    # Twice: the squares make the second derivative more than nothing.
    assert torch.autograd.gradgradcheck(lambda *leaves: function(*leaves).square(), leaves)


def test_transforms(sums_of: Callable[..., Tensor]) -> None:
    given = drawn()
    assert_gradients_agree(lambda x: sums_of(**(given | {"inputs": x})), given["inputs"])


@pytest.mark.parametrize("name", ["inputs", "dones", "seed_values"])
def test_vmap_over_every_argument(sums_of: Callable[..., Tensor], name: str) -> None:
    given = drawn()
    many = torch.randn(3, *given[name].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name == "dones":
        many = many > 1
    assert_maps(lambda x: sums_of(**(given | {name: x})), many)


@pytest.mark.parametrize("name", ["inputs", "seed_values"])
def test_forward_mode_is_the_transpose_of_reverse_mode(sums_of: Callable[..., Tensor], name: str) -> None:
    given = drawn()
    assert_forward_mode_agrees(lambda x: sums_of(**(given | {name: x})), given[name])


def test_jacobians_and_hessians(sums_of: Callable[..., Tensor]) -> None:
    given = drawn()
    assert_jacobians_agree(lambda x: sums_of(**(given | {"inputs": x})), given["inputs"])


def test_modes_and_parameters(sums_of: Callable[..., Tensor]) -> None:
    assert_records_where_asked(sums_of, drawn(), "inputs")


def test_meta_tensors_have_no_values(sums_of: Callable[..., Tensor]) -> None:
    prefix_sums = sums_of(**{name: x.to("meta") for name, x in drawn().items()})
    assert prefix_sums.is_meta
    assert prefix_sums.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(sums_of: Callable[..., Tensor], layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = {name: x.t().contiguous() if x.dim() == 2 and dim == 0 else x for name, x in drawn().items()}
    assert_traces(lambda *tensors: sums_of(*tensors, time_dim=dim), list(given.values()))


CALLS = (("inputs", "dones"), ("inputs", "dones", "seed_values"))


@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(sums_of: Callable[..., Tensor], check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(sums_of, names)
