"""compute_eligibility_traces inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import (
    assert_forward_mode_agrees,
    assert_gradients_agree,
    assert_jacobians_agree,
    assert_maps,
    assert_records_where_asked,
    assert_traces,
)
from rl_triton_traces import compute_eligibility_traces
from torch import Tensor

GAMMA, LAMBDA = 0.9, 0.8


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Arguments in the order of the function's tensors."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(2, 9, generator=generator, dtype=dtype)
    dones = torch.rand(2, 9, generator=generator) < 0.2
    return {"gradients": gradients, "dones": dones, "seed_values": torch.randn(2, generator=generator, dtype=dtype)}


def traces_of(gradients: Tensor, dones: Tensor, seed_values: Tensor | None = None, **options: Any) -> Tensor:
    return compute_eligibility_traces(gradients, dones, GAMMA, LAMBDA, seed_values, **options)


@pytest.mark.parametrize("names", [("gradients",), ("seed_values",), ("gradients", "seed_values")], ids="-".join)
def test_gradients_of_every_real_input(names: tuple[str, ...]) -> None:
    given = drawn()

    def function(*leaves: Tensor) -> Tensor:
        return traces_of(**(given | dict(zip(names, leaves, strict=True))))

    leaves = [given[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(function, leaves)
    # Twice: the squares make the second derivative more than nothing.
    assert torch.autograd.gradgradcheck(lambda *leaves: function(*leaves).square(), leaves)


VARIANTS: list[dict[str, Any]] = [{}, {"kind": "replacing"}, {"kind": "dutch", "alpha": 0.3}]
every_variant = pytest.mark.parametrize("options", VARIANTS, ids=str)


def drawn_for(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments with ratios, one of which is 0, where they may be; a replacing trace has something to keep."""
    given: dict[str, Any] = drawn() | options
    if options.get("kind") == "replacing":
        given["gradients"] = torch.where(given["gradients"] > 0, given["gradients"], 0.0)
    if options.get("kind") != "dutch":
        generator = torch.Generator().manual_seed(5)
        given["ratios"] = torch.rand(2, 9, generator=generator, dtype=torch.float64) + 0.5
        given["ratios"][0, 4] = 0.0
    return given


@every_variant
def test_gradients_of_other_traces(options: dict[str, Any]) -> None:
    given = drawn_for(options)
    names = [name for name in ("gradients", "seed_values", "ratios") if name in given]
    if options.get("kind") == "replacing":
        # There is no derivative in a gradient of 0; in the others it is what it is of a gradient that is one.
        replaces = given["gradients"] != 0
        assert 0 < replaces.sum() < replaces.numel()

    def function(*leaves: Tensor) -> Tensor:
        changed = dict(zip(names, leaves, strict=True))
        if options.get("kind") == "replacing":
            changed["gradients"] = torch.where(replaces, changed["gradients"], 0.0)
        return traces_of(**(given | changed))

    leaves = [given[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(lambda *leaves: function(*leaves).square(), leaves)


def test_transforms() -> None:
    given = drawn()
    assert_gradients_agree(lambda x: traces_of(**(given | {"gradients": x})), given["gradients"])


@pytest.mark.parametrize("name", ["gradients", "dones", "seed_values"])
def test_vmap_over_every_argument(name: str) -> None:
    given = drawn()
    many = torch.randn(3, *given[name].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name == "dones":
        many = many > 1
    assert_maps(lambda x: traces_of(**(given | {name: x})), many)


@every_variant
@pytest.mark.parametrize("name", ["gradients", "dones", "seed_values", "ratios"])
def test_vmap_over_every_argument_of_other_traces(name: str, options: dict[str, Any]) -> None:
    given = drawn_for(options)
    if name not in given:
        pytest.skip("no ratios")
    many = torch.randn(3, *given[name].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name == "dones":
        many = many > 1
    elif options.get("kind") == "replacing":
        many = many.clamp(min=0.0)
    assert_maps(lambda x: traces_of(**(given | {name: x})), many)


@every_variant
@pytest.mark.parametrize("name", ["gradients", "seed_values", "ratios"])
def test_forward_mode_of_other_traces(name: str, options: dict[str, Any]) -> None:
    given = drawn_for(options)
    if name not in given:
        pytest.skip("no ratios")
    assert_forward_mode_agrees(lambda x: traces_of(**(given | {name: x})), given[name])


@pytest.mark.parametrize("name", ["gradients", "seed_values"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given = drawn()
    assert_forward_mode_agrees(lambda x: traces_of(**(given | {name: x})), given[name])


def test_jacobians_and_hessians() -> None:
    given = drawn()
    assert_jacobians_agree(lambda x: traces_of(**(given | {"gradients": x})), given["gradients"])


def test_modes_and_parameters() -> None:
    assert_records_where_asked(traces_of, drawn(), "gradients")


def test_meta_tensors_have_no_values() -> None:
    traces = traces_of(**{name: x.to("meta") for name, x in drawn().items()})
    assert traces.is_meta
    assert traces.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = {name: x.t().contiguous() if x.dim() == 2 and dim == 0 else x for name, x in drawn().items()}
    assert_traces(lambda *tensors: traces_of(*tensors, time_dim=dim), list(given.values()))


CALLS = (("gradients", "dones"), ("gradients", "dones", "seed_values"))


@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(traces_of, names)


OTHER_CALLS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("gradients", "dones", "seed_values", "ratios"), {}),
    (("gradients", "dones", "seed_values"), {"kind": "replacing"}),
    (("gradients", "dones", "ratios"), {"kind": "replacing"}),
    (("gradients", "dones", "seed_values"), {"kind": "dutch", "alpha": 0.3}),
]


@pytest.mark.parametrize(("names", "options"), OTHER_CALLS, ids=str)
@CHECKS
def test_other_traces_inside_pytorch(
    check: Callable[..., None], names: tuple[str, ...], options: dict[str, Any]
) -> None:
    check(functools.partial(traces_of, **options), names)
