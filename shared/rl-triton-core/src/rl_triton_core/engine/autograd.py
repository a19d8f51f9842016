"""Derivatives of the scan: the scan in the other direction, with decays and cuts shifted by one step.

Where step s reads step t, that is y[s] = u[s] + decay[s] * y[t], the gradient of step t reads that of step s:

    grad_u[t]     = grad_y[t] + decay[s] * grad_u[s]     grad_u[t] = grad_y[t] where cut[s], and where nothing reads t
    grad_decay[s] = grad_u[s] * y[t]                     0 where cut[s], and at the open end

The tangent of y is a scan of the same decays and cuts, over the tangent of u plus that of the decay times y[t]. Both
consist of differentiable operations and of the scan itself, so they have derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call_grad
from torch._functorch.pyfunctorch import FuncTorchInterpreter, retrieve_current_functorch_interpreter

from rl_triton_core.engine.modes import is_inside_operator, outside_operator
from rl_triton_core.engine.torch_scan import scan_steps

ForwardScan: TypeAlias = Callable[..., Tensor]


def differentiable_scan(
    u: Tensor,
    decay: Tensor | float,
    cut: Tensor | None,
    *,
    dim: int,
    reverse: bool,
    forward: ForwardScan = scan_steps,
) -> Tensor:
    """`forward(u, decay, cut, dim=dim, reverse=reverse)`, differentiable in `u` and in a tensor `decay`.

    `forward` computes what `scan_steps` does and serves the derivatives too. What a cut hides gets a derivative of 0,
    also where it is NaN.
    """
    arguments = (u, decay, cut, dim, reverse, forward)
    if not is_inside_operator():
        return cast(Tensor, _Scan.apply(*arguments))  # type: ignore[no-untyped-call]
    # `apply` would look for the transform that is at work already.
    interpreter = cast(FuncTorchInterpreter, _Interpreter())
    return cast(Tensor, custom_function_call_grad(interpreter, _Scan, *arguments))


class _Interpreter:
    """The transform at work, from inside an operator: the next one sees operations as if there were no operator."""

    def __init__(self) -> None:
        self._interpreter = retrieve_current_functorch_interpreter()

    def level(self) -> int:
        return self._interpreter.level()

    @contextmanager
    def lower(self) -> Iterator[None]:
        with self._interpreter.lower(), outside_operator():
            yield


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        u: Tensor, decay: Tensor | float, cut: Tensor | None, dim: int, reverse: bool, forward: ForwardScan
    ) -> Tensor:
        return forward(u, decay, cut, dim=dim, reverse=reverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, decay, cut, ctx.dim, ctx.reverse, ctx.forward_scan = inputs
        per_step = isinstance(decay, Tensor)
        ctx.number = None if per_step else decay
        saved = (decay if per_step else None, cut, output if per_step else None)
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        decay, cut, y = ctx.saved_tensors
        dim, reverse = ctx.dim, ctx.reverse
        to_reader = 1 if reverse else -1
        grad_u = differentiable_scan(
            grad_outputs[0],
            ctx.number if decay is None else decay.roll(to_reader, dim),
            None if cut is None else cut.roll(to_reader, dim),
            dim=dim,
            reverse=not reverse,
            forward=ctx.forward_scan,
        )
        grad_decay = None
        if ctx.needs_input_grad[1]:
            grad_decay = _times_neighbour(grad_u, y, cut, dim, reverse)
        return grad_u, grad_decay, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        decay, cut, y = ctx.saved_tensors
        tangent_u, tangent_decay = tangents[:2]
        if tangent_decay is not None:
            through_decay = _times_neighbour(tangent_decay, y, cut, ctx.dim, ctx.reverse)
            tangent_u = through_decay if tangent_u is None else tangent_u + through_decay
        number_or_steps = ctx.number if decay is None else decay
        return differentiable_scan(
            tangent_u, number_or_steps, cut, dim=ctx.dim, reverse=ctx.reverse, forward=ctx.forward_scan
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        u: Tensor,
        decay: Tensor | float,
        cut: Tensor | None,
        dim: int,
        reverse: bool,
        forward: ForwardScan,
    ) -> tuple[Tensor, int]:
        def batch_first(x: Any, batch_dim: int | None) -> Any:
            if not isinstance(x, Tensor):
                return x
            return x.expand(info.batch_size, *x.shape) if batch_dim is None else x.movedim(batch_dim, 0)

        u, decay, cut = (batch_first(x, batch_dim) for x, batch_dim in zip((u, decay, cut), in_dims[:3], strict=True))
        return differentiable_scan(u, decay, cut, dim=dim + 1, reverse=reverse, forward=forward), 0


def _times_neighbour(factor: Tensor, y: Tensor, cut: Tensor | None, dim: int, reverse: bool) -> Tensor:
    """factor[s] * y[t], and 0 where step s reads nothing: at a cut, and at the open end."""
    hidden = torch.zeros_like(y, dtype=torch.bool) if cut is None else cut.clone()
    hidden.select(dim, -1 if reverse else 0).fill_(True)
    # Both factors are selected: neither meets the other's NaN, here or in a second derivative.
    return factor.masked_fill(hidden, 0.0) * y.roll(-1 if reverse else 1, dim).masked_fill(hidden, 0.0)
