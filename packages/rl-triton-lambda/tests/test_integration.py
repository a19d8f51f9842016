"""compute_lambda_returns inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_lambda import compute_lambda_returns
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

    def total(rewards: Tensor) -> Tensor:
        return compute_lambda_returns(rewards, given["next_values"], given["terminateds"]).sum()

    gradient = torch.func.grad(total)(given["rewards"])
    leaf = given["rewards"].clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)


VMAPPED = ("rewards", "next_values", "terminateds", "truncateds", "bootstrap_values", "gamma", "lambda_")


@pytest.mark.parametrize("name", VMAPPED)
def test_vmap_over_every_argument(name: str) -> None:
    given = drawn()
    many = torch.rand(3, 2, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3

    def one(x: Tensor) -> Tensor:
        return compute_lambda_returns(**(given | {name: x}))

    torch.testing.assert_close(torch.func.vmap(one)(many), torch.stack([one(x) for x in many]))
    nested = torch.func.vmap(torch.func.vmap(one))(many.unsqueeze(0))
    torch.testing.assert_close(nested[0], torch.stack([one(x) for x in many]))


@pytest.mark.parametrize("name", ["rewards", "next_values", "bootstrap_values", "gamma", "lambda_"])
def test_forward_mode_is_the_transpose_of_reverse_mode(name: str) -> None:
    given: dict[str, Any] = drawn()
    x = torch.rand(2, 9, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    tangent, cotangent = torch.randn_like(x), torch.randn(2, 9, dtype=torch.float64)

    def one(x: Tensor) -> Tensor:
        return compute_lambda_returns(**(given | {name: x}))

    forward = torch.func.jvp(one, (x,), (tangent,))[1]
    backward = torch.func.vjp(one, x)[1](cotangent)[0]
    torch.testing.assert_close((forward * cotangent).sum(), (backward * tangent).sum())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(one(dual)).tangent, forward)


def test_jacobians_and_hessians() -> None:
    given = drawn()

    def one(next_values: Tensor) -> Tensor:
        return compute_lambda_returns(given["rewards"], next_values, given["terminateds"])

    forward, backward = torch.func.jacfwd(one)(given["next_values"]), torch.func.jacrev(one)(given["next_values"])
    torch.testing.assert_close(forward, backward)
    hessian = torch.func.hessian(lambda values: one(values).square().sum())(given["next_values"])
    torch.testing.assert_close(hessian, hessian.permute(2, 3, 0, 1))
    assert hessian.abs().max() > 0


def test_modes_and_parameters() -> None:
    given = drawn()
    expected = compute_lambda_returns(**given)
    with torch.inference_mode():
        torch.testing.assert_close(compute_lambda_returns(**given), expected)
    parameter = torch.nn.Parameter(given["next_values"])
    with torch.no_grad():
        detached = compute_lambda_returns(given["rewards"], parameter, given["terminateds"])
    torch.testing.assert_close(detached, expected)
    assert not detached.requires_grad
    assert compute_lambda_returns(given["rewards"], parameter, given["terminateds"]).requires_grad


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    returns = compute_lambda_returns(**shapes)
    assert returns.is_meta
    assert returns.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    dim = 1 if layout == "environment-major" else 0
    given = {name: x if dim else x.t().contiguous() for name, x in drawn().items()}
    expected = compute_lambda_returns(**given, time_dim=dim)
    with FakeTensorMode() as mode:
        fake = compute_lambda_returns(**{name: mode.from_tensor(x) for name, x in given.items()}, time_dim=dim)
    assert fake.shape == expected.shape
    assert fake.dtype == expected.dtype

    def one(rewards: Tensor, next_values: Tensor, terminateds: Tensor) -> Tensor:
        return compute_lambda_returns(rewards, next_values, terminateds, terminateds, time_dim=dim)

    traced = make_fx(one, tracing_mode="fake")(*given.values())
    torch.testing.assert_close(traced(*given.values()), expected)
    other = {name: x.flip(0) for name, x in given.items()}
    torch.testing.assert_close(traced(*other.values()), compute_lambda_returns(**other, time_dim=dim))


def test_exports() -> None:
    class Returns(torch.nn.Module):
        def forward(self, rewards: Tensor, next_values: Tensor, terminateds: Tensor) -> Tensor:
            return compute_lambda_returns(rewards, next_values, terminateds)

    given = drawn()
    exported = torch.export.export(Returns(), tuple(given.values()))
    torch.testing.assert_close(exported.module()(*given.values()), compute_lambda_returns(**given))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles(backend: str) -> None:
    given = drawn(torch.float32)
    compiled = torch.compile(compute_lambda_returns, backend=backend)
    torch.testing.assert_close(compiled(**given), compute_lambda_returns(**given))
