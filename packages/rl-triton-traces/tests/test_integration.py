"""compute_eligibility_traces inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_traces import compute_eligibility_traces
from torch import Tensor

GAMMA, LAMBDA = 0.9, 0.8


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Arguments in the order of the function's tensors."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(2, 9, generator=generator, dtype=dtype)
    dones = torch.rand(2, 9, generator=generator) < 0.2
    return {"gradients": gradients, "dones": dones, "seed_values": torch.randn(2, generator=generator, dtype=dtype)}


def traces_of(gradients: Tensor, dones: Tensor, seed_values: Tensor | None, time_dim: int = 1) -> Tensor:
    return compute_eligibility_traces(gradients, dones, GAMMA, LAMBDA, seed_values, time_dim=time_dim)


@pytest.mark.parametrize("names", [("gradients",), ("seed_values",), ("gradients", "seed_values")], ids="-".join)
def test_gradients_of_every_real_input(names: tuple[str, ...]) -> None:
    given = drawn()

    def function(*leaves: Tensor) -> Tensor:
        return traces_of(**(given | dict(zip(names, leaves, strict=True))))

    leaves = [given[name].clone().requires_grad_() for name in names]
    assert torch.autograd.gradcheck(function, leaves)
    # Twice: the squares make the second derivative more than nothing.
    assert torch.autograd.gradgradcheck(lambda *leaves: function(*leaves).square(), leaves)


def test_transforms() -> None:
    given = drawn()

    def total(gradients: Tensor) -> Tensor:
        return traces_of(gradients, given["dones"], given["seed_values"]).sum()

    gradient = torch.func.grad(total)(given["gradients"])
    leaf = given["gradients"].clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)


@pytest.mark.parametrize("name", ["gradients", "dones", "seed_values"])
def test_vmap_over_every_argument(name: str) -> None:
    given = drawn()
    many = torch.randn(3, *given[name].shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name == "dones":
        many = many > 1

    def one(x: Tensor) -> Tensor:
        return traces_of(**(given | {name: x}))

    expected = torch.stack([one(x) for x in many])
    torch.testing.assert_close(torch.func.vmap(one)(many), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.vmap(one))(many.unsqueeze(0))[0], expected)
    torch.testing.assert_close(torch.func.vmap(one, in_dims=-1)(many.movedim(0, -1)), expected)


@pytest.mark.parametrize("name", ["gradients", "seed_values"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given = drawn()
    x, generator = given[name], torch.Generator().manual_seed(4)
    tangent = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    cotangent = torch.randn(2, 9, generator=generator, dtype=torch.float64)

    def one(x: Tensor) -> Tensor:
        return traces_of(**(given | {name: x}))

    forward = torch.func.jvp(one, (x,), (tangent,))[1]
    backward = torch.func.vjp(one, x)[1](cotangent)[0]
    torch.testing.assert_close((forward * cotangent).sum(), (backward * tangent).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(one(dual)).tangent, forward)


def test_jacobians_and_hessians() -> None:
    given = drawn()

    def one(gradients: Tensor) -> Tensor:
        return traces_of(gradients, given["dones"], given["seed_values"])

    forward, backward = torch.func.jacfwd(one)(given["gradients"]), torch.func.jacrev(one)(given["gradients"])
    torch.testing.assert_close(forward, backward)
    hessian = torch.func.hessian(lambda gradients: one(gradients).square().sum())(given["gradients"])
    torch.testing.assert_close(hessian, hessian.permute(2, 3, 0, 1))
    assert hessian.abs().max() > 0


def test_modes_and_parameters() -> None:
    given = drawn()
    expected = traces_of(**given)
    with torch.inference_mode():
        torch.testing.assert_close(traces_of(**given), expected)
    with_parameter: dict[str, Any] = given | {"gradients": torch.nn.Parameter(given["gradients"])}
    with torch.no_grad():
        detached = traces_of(**with_parameter)
    torch.testing.assert_close(detached, expected)
    assert not detached.requires_grad
    assert traces_of(**with_parameter).requires_grad


def test_meta_tensors_have_no_values() -> None:
    traces = traces_of(**{name: x.to("meta") for name, x in drawn().items()})
    assert traces.is_meta
    assert traces.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    dim = 1 if layout == "environment-major" else 0
    given = {name: x.t().contiguous() if x.dim() == 2 and dim == 0 else x for name, x in drawn().items()}
    expected = traces_of(**given, time_dim=dim)
    with FakeTensorMode() as mode:
        fake = traces_of(**{name: mode.from_tensor(x) for name, x in given.items()}, time_dim=dim)
    assert fake.shape == expected.shape
    assert fake.dtype == expected.dtype

    def one(gradients: Tensor, dones: Tensor, seed_values: Tensor) -> Tensor:
        return traces_of(gradients, dones, seed_values, dim)

    traced = make_fx(one, tracing_mode="fake")(*given.values())
    torch.testing.assert_close(traced(*given.values()), expected)
    other = {name: x.flip(0) for name, x in given.items()}
    torch.testing.assert_close(traced(*other.values()), traces_of(**other, time_dim=dim))


def test_exports() -> None:
    class Traces(torch.nn.Module):
        def forward(self, gradients: Tensor, dones: Tensor, seed_values: Tensor) -> Tensor:
            return traces_of(gradients, dones, seed_values)

    given = drawn()
    exported = torch.export.export(Traces(), tuple(given.values()))
    torch.testing.assert_close(exported.module()(*given.values()), traces_of(**given))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(backend: str) -> None:
    given = drawn(torch.float32)
    compiled = torch.compile(traces_of, backend=backend)
    torch.testing.assert_close(compiled(**given), traces_of(**given))
