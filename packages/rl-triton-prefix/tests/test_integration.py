"""compute_episodic_prefix_sum inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core.boundaries import FLAG_CONVENTIONS
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

    def sums_of(inputs: Tensor, dones: Tensor, seed_values: Tensor | None, time_dim: int = 1) -> Tensor:
        return compute_episodic_prefix_sum(inputs, dones, seed_values, boundary, time_dim=time_dim)

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

    def total(inputs: Tensor) -> Tensor:
        return sums_of(inputs, given["dones"], given["seed_values"]).sum()

    gradient = torch.func.grad(total)(given["inputs"])
    leaf = given["inputs"].clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("name", ["inputs", "dones", "seed_values"])
def test_vmap_over_every_argument(sums_of: Callable[..., Tensor], name: str) -> None:
    given = drawn()
    many = torch.randn(3, *given[name].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name == "dones":
        many = many > 1

    def one(x: Tensor) -> Tensor:
        return sums_of(**(given | {name: x}))

    expected = torch.stack([one(x) for x in many])
    torch.testing.assert_close(torch.func.vmap(one)(many), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(one))(many.unsqueeze(0))[0], expected)
    torch.testing.assert_close(torch.func.vmap(one, in_dims=-1)(many.movedim(0, -1)), expected)


@pytest.mark.parametrize("name", ["inputs", "seed_values"])
def test_forward_mode_is_the_transpose_of_reverse_mode(sums_of: Callable[..., Tensor], name: str) -> None:
    given = drawn()
    x, generator = given[name], torch.Generator().manual_seed(4)
    tangent = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(2, 9, generator=generator, dtype=torch.float64)

    def one(x: Tensor) -> Tensor:
        return sums_of(**(given | {name: x}))

    forward = torch.func.jvp(one, (x,), (tangent,))[1]
    backward = torch.func.vjp(one, x)[1](cotangent)[0]
    torch.testing.assert_close((forward * cotangent).sum(), (backward * tangent).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(one(dual)).tangent, forward)


def test_jacobians_and_hessians(sums_of: Callable[..., Tensor]) -> None:
    given = drawn()

    def one(inputs: Tensor) -> Tensor:
        return sums_of(inputs, given["dones"], given["seed_values"])

    forward, backward = torch.func.jacfwd(one)(given["inputs"]), torch.func.jacrev(one)(given["inputs"])
    torch.testing.assert_close(forward, backward)
    hessian = torch.func.hessian(lambda inputs: one(inputs).square().sum())(given["inputs"])
    torch.testing.assert_close(hessian, hessian.permute(2, 3, 0, 1))
    assert hessian.abs().max() > 0


def test_modes_and_parameters(sums_of: Callable[..., Tensor]) -> None:
    given = drawn()
    expected = sums_of(**given)
    with torch.inference_mode():
        torch.testing.assert_close(sums_of(**given), expected)
    with_parameter: dict[str, Any] = given | {"inputs": torch.nn.Parameter(given["inputs"])}
    with torch.no_grad():
        detached = sums_of(**with_parameter)
    torch.testing.assert_close(detached, expected)
    assert not detached.requires_grad
    assert sums_of(**with_parameter).requires_grad


def test_meta_tensors_have_no_values(sums_of: Callable[..., Tensor]) -> None:
    prefix_sums = sums_of(**{name: x.to("meta") for name, x in drawn().items()})
    assert prefix_sums.is_meta
    assert prefix_sums.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(sums_of: Callable[..., Tensor], layout: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    dim = 1 if layout == "environment-major" else 0
    given = {name: x.t().contiguous() if x.dim() == 2 and dim == 0 else x for name, x in drawn().items()}
    expected = sums_of(**given, time_dim=dim)
    with FakeTensorMode() as mode:
        fake = sums_of(**{name: mode.from_tensor(x) for name, x in given.items()}, time_dim=dim)
    assert fake.shape == expected.shape
    assert fake.dtype == expected.dtype

    def one(inputs: Tensor, dones: Tensor, seed_values: Tensor) -> Tensor:
        return sums_of(inputs, dones, seed_values, dim)

    traced = make_fx(one, tracing_mode="fake")(*given.values())
    torch.testing.assert_close(traced(*given.values()), expected)
    other = {name: x.flip(0) for name, x in given.items()}
    torch.testing.assert_close(traced(*other.values()), sums_of(**other, time_dim=dim))


def test_exports(sums_of: Callable[..., Tensor]) -> None:
    class PrefixSums(torch.nn.Module):
        def forward(self, inputs: Tensor, dones: Tensor, seed_values: Tensor) -> Tensor:
            return sums_of(inputs, dones, seed_values)

    given = drawn()
    exported = torch.export.export(PrefixSums(), tuple(given.values()))
    torch.testing.assert_close(exported.module()(*given.values()), sums_of(**given))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(sums_of: Callable[..., Tensor], backend: str) -> None:
    given = drawn(torch.float32)
    compiled = torch.compile(sums_of, backend=backend)
    torch.testing.assert_close(compiled(**given), sums_of(**given))
