"""compute_vtrace inside PyTorch: no gradients, and transforms, modes, compilation."""

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
    assert_maps,
    assert_steps_are_transparent,
    assert_traces,
)
from rl_triton_vtrace import compute_vtrace, reference
from torch import Tensor

NAMES = ("log_pi_target", "log_pi_behavior", "values", "rewards")


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    numbers: dict[str, Any] = {name: torch.randn(2, 9, generator=generator, dtype=dtype) for name in NAMES}
    return numbers | {"terminateds": torch.rand(2, 9, generator=generator) < 0.2}


def assert_equal(actual: Any, expected: Any) -> None:
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", [*NAMES, "last_value", "bootstrap_values", "next_values", "gamma", "lambda_"])
def test_targets_record_no_gradient(name: str) -> None:
    given = drawn()
    shape = (2,) if name == "last_value" else (2, 9)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = compute_vtrace(**(given | {name: x}))
    leaf = x.clone().requires_grad_()
    outputs = compute_vtrace(**(given | {name: leaf}))
    assert not any(output.requires_grad for output in outputs)
    assert_equal(outputs, expected)

    def one(x: Tensor) -> tuple[Tensor, Tensor]:
        return compute_vtrace(**(given | {name: x}))

    def loss(x: Tensor) -> Tensor:
        targets, advantages = one(x)
        return (x * 2).sum() + targets.sum() + advantages.sum()

    torch.testing.assert_close(torch.func.grad(loss)(x), torch.full_like(x, 2.0))
    outputs, tangents = torch.func.jvp(one, (x,), (torch.ones_like(x),))
    assert_equal(outputs, expected)
    assert all(tangent.count_nonzero() == 0 for tangent in tangents)
    with torch.autograd.forward_ad.dual_level():
        for output in one(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))):
            assert torch.autograd.forward_ad.unpack_dual(output).tangent is None


def test_the_losses_of_an_update_have_gradients() -> None:
    """A target is what the values are regressed on, and an advantage weighs the policy's log probabilities."""
    given = drawn()
    log_pi, values = (given[name].clone().requires_grad_() for name in ("log_pi_target", "values"))
    targets, advantages = compute_vtrace(**(given | {"log_pi_target": log_pi, "values": values}))
    ((targets - values).square().sum() / 2 - (advantages * log_pi).sum()).backward()
    torch.testing.assert_close(values.grad, (values - targets).detach())
    torch.testing.assert_close(log_pi.grad, -advantages)


VMAPPED = (*NAMES, "terminateds", "truncateds", "bootstrap_values", "next_values", "last_value", "gamma", "lambda_")


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize(
    "options", [{}, {"pg_rho_bar": 2.0, "lambda_": 0.8}, {"leak": 0.5}], ids=["one clip", "pg_rho_bar", "leak"]
)
@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_over_every_argument(name: str, options: dict[str, Any]) -> None:
    given = drawn() | options
    generator = torch.Generator().manual_seed(3)
    shape = (3, 2) if name == "last_value" else (3, 2, 9)
    many = torch.rand(shape, generator=generator, dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3
    assert_maps(lambda x: compute_vtrace(**(given | {name: x})), many)


def test_modes_and_parameters() -> None:
    given = drawn()
    expected = compute_vtrace(**given)
    with torch.inference_mode():
        assert_equal(compute_vtrace(**given), expected)
    assert_equal(compute_vtrace(**(given | {"values": torch.nn.Parameter(given["values"])})), expected)


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    for output in compute_vtrace(**shapes):
        assert output.is_meta
        assert output.shape == (2, 9)


@pytest.mark.parametrize("options", [{}, {"pg_rho_bar": 2.0}, {"leak": 0.5}], ids=["one clip", "pg_rho_bar", "leak"])
@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str, options: dict[str, float]) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = [x if dim else x.t().contiguous() for x in drawn().values()]
    assert_traces(lambda *tensors: compute_vtrace(*tensors, time_dim=dim, **options), given)


CALLS = (
    (*NAMES, "terminateds"),
    (*NAMES, "terminateds", "truncateds"),
    (*NAMES, "terminateds", "truncateds", "bootstrap_values", "gamma"),
    (*NAMES, "terminateds", "last_value", "lambda_"),
)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(compute_vtrace, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_flags_at_starts(names: tuple[str, ...]) -> None:
    assert_flags_at_starts_agree(compute_vtrace, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_flags_at_starts(check: Callable[..., None]) -> None:
    check(FlagsAtStarts(compute_vtrace), (*CALLS[1], "next_start", "next_start_truncated"))


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_transparent_steps(names: tuple[str, ...]) -> None:
    # The first is the one whose layout the outputs have.
    names = ("rewards", *(name for name in names if name != "rewards"))
    assert_steps_are_transparent(compute_vtrace, reference.compute_vtrace, names)


@pytest.mark.filterwarnings("ignore:truncateds without")
@CHECKS
def test_inside_pytorch_with_a_mask(check: Callable[..., None]) -> None:
    check(compute_vtrace, (*CALLS[1], "mask"))


@CHECKS
def test_a_leak_inside_pytorch(check: Callable[..., None]) -> None:
    check(partial(compute_vtrace, leak=0.5), CALLS[3])
