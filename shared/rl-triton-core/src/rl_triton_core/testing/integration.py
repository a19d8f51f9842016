"""What must hold of a differentiable or traced call, whatever it computes: its transforms, and PyTorch's tracers.

`one` is the public function with all but the tensors in question fixed; it returns a tensor or a tuple of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rl_triton_core.testing.calls import as_tuple


def assert_maps(one: Callable[[Tensor], Any], many: Tensor) -> None:
    """Fail unless vmap over the first axis, nested, and over the last axis, gives what call after call does."""
    expected = [torch.stack(outputs) for outputs in zip(*(as_tuple(one(x)) for x in many), strict=True)]
    mapped = as_tuple(torch.func.vmap(one)(many))
    nested = as_tuple(torch.func.vmap(torch.func.vmap(one))(many.unsqueeze(0)))
    along_last = as_tuple(torch.func.vmap(one, in_dims=-1)(many.movedim(0, -1)))
    for several in (mapped, [x[0] for x in nested], along_last):
        torch.testing.assert_close(list(several), expected)


def assert_gradients_agree(one: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Fail unless torch.func.grad of the sum is what autograd gives."""
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(one(leaf).sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: one(x).sum())(x), gradient)


def assert_forward_mode_agrees(one: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Fail unless forward mode is the transpose of reverse mode, by torch.func and by dual tensors."""
    generator = torch.Generator().manual_seed(4)
    vjp: Any = torch.func.vjp(one, x)
    y, pull_back = vjp
    tangent, cotangent = (torch.randn(of.shape, generator=generator, dtype=of.dtype) for of in (x, y))
    forward = torch.func.jvp(one, (x,), (tangent,))[1]
    torch.testing.assert_close((forward * cotangent).sum(), (pull_back(cotangent)[0] * tangent).sum())
    with forward_ad.dual_level():
        y = one(forward_ad.make_dual(x, tangent))  # type: ignore[no-untyped-call]
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, forward)  # type: ignore[no-untyped-call]


def assert_jacobians_agree(one: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Fail unless both Jacobians are equal, and the Hessian of the sum of squares is symmetric and not 0."""
    torch.testing.assert_close(torch.func.jacfwd(one)(x), torch.func.jacrev(one)(x))
    hessian = torch.func.hessian(lambda x: one(x).square().sum())(x)
    axes = x.dim()
    torch.testing.assert_close(hessian, hessian.permute(*range(axes, 2 * axes), *range(axes)))
    assert hessian.abs().max() > 0


def assert_records_where_asked(function: Callable[..., Tensor], given: dict[str, Any], name: str) -> None:
    """Fail unless inference mode and no_grad change no number, and a parameter as `name` is recorded without them."""
    expected = function(**given)
    with torch.inference_mode():
        torch.testing.assert_close(function(**given), expected)
    with_parameter = given | {name: torch.nn.Parameter(given[name])}
    with torch.no_grad():
        detached = function(**with_parameter)
    torch.testing.assert_close(detached, expected)
    assert not detached.requires_grad
    assert function(**with_parameter).requires_grad


def assert_traces(one: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
    """Fail unless fake tensors get the outputs' shapes, dtypes and strides, and a trace serves other numbers too."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    expected = one(*tensors)
    with FakeTensorMode() as mode:
        fakes = one(*(mode.from_tensor(x) for x in tensors))
    for fake, output in zip(as_tuple(fakes), as_tuple(expected), strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (output.shape, output.dtype, output.stride())
    traced = make_fx(one, tracing_mode="fake")(*tensors)
    torch.testing.assert_close(traced(*tensors), expected)
    others = [x.flip(0) for x in tensors]
    torch.testing.assert_close(traced(*others), one(*others))


def assert_exports(one: Callable[..., Any], tensors: Sequence[Tensor]) -> None:
    """Fail unless torch.export takes a module that makes the call."""

    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Any:
            return one(*tensors)

    exported = torch.export.export(Module(), tuple(tensors))
    torch.testing.assert_close(exported.module()(*tensors), one(*tensors))
