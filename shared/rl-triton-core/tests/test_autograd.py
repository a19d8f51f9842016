"""Derivatives of the scan, first and second, in float64; and what a cut hides from them."""

from __future__ import annotations

import pytest
import torch
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.torch_scan import scan_steps
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck


def arguments(shape: tuple[int, ...], per_step: bool) -> tuple[Tensor, Tensor | float]:
    torch.manual_seed(0)
    u = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    return u, torch.rand(shape, dtype=torch.float64).requires_grad_() if per_step else 0.9


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((2, 5), 1), ((6, 2), 0), ((2, 4, 2), 1), ((1, 1), 1)])
def test_first_and_second_derivatives(
    reverse: bool, per_step: bool, cuts: bool, shape: tuple[int, ...], dim: int
) -> None:
    u, decay = arguments(shape, per_step)
    cut = torch.rand(shape) < 0.3 if cuts else None

    def scan(u: Tensor, decay: Tensor | float) -> Tensor:
        return differentiable_scan(u, decay, cut, dim=dim, reverse=reverse)

    assert gradcheck(scan, (u, decay))
    assert gradgradcheck(scan, (u, decay))


@pytest.mark.parametrize("reverse", [False, True])
def test_nan_behind_a_cut_reaches_no_other_gradient(reverse: bool) -> None:
    u = torch.tensor([[1.0, 2.0, float("nan"), 3.0]], requires_grad=True)
    decay = torch.tensor([[0.5, float("nan"), 0.5, 0.5]], requires_grad=True)
    cut = torch.tensor([[False, True, False, True]])
    if not reverse:
        u, decay, cut = (x.detach().flip(1) for x in (u, decay, cut))
        u.requires_grad_(), decay.requires_grad_()
    y = differentiable_scan(u, decay, cut, dim=1, reverse=reverse)
    inside = [0, 1] if reverse else [2, 3]
    y[:, inside].sum().backward()
    expected_u, expected_decay = [[1.0, 1.5, 0.0, 0.0]], [[2.0, 0.0, 0.0, 0.0]]
    assert u.grad is not None
    assert decay.grad is not None
    assert (u.grad if reverse else u.grad.flip(1)).tolist() == expected_u
    gradient = decay.grad if reverse else decay.grad.flip(1)
    # Inside the segment of the NaN a derivative may be NaN; hidden decays and the other segment have theirs.
    assert gradient[0, [0, 1, 3]].tolist() == [expected_decay[0][i] for i in (0, 1, 3)]


def test_a_plain_zero_decay_has_a_derivative_and_a_cut_has_none() -> None:
    u = torch.ones(1, 3)
    decay = torch.zeros(1, 3, requires_grad=True)
    cut = torch.tensor([[False, True, False]])
    differentiable_scan(u, decay, cut, dim=1, reverse=True).sum().backward()
    assert decay.grad is not None
    assert decay.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_a_cut_decay_has_no_derivative_whatever_comes_back_to_its_step() -> None:
    decay = torch.full((1, 3), 0.5, requires_grad=True)
    cut = torch.tensor([[False, True, False]])
    y = differentiable_scan(torch.ones(1, 3), decay, cut, dim=1, reverse=True)
    y.backward(torch.tensor([[1.0, float("nan"), float("nan")]]))
    assert decay.grad is not None
    assert decay.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_another_forward_scan_serves_both_passes() -> None:
    directions = []

    def forward(u: Tensor, decay: Tensor | float, cut: Tensor | None, *, dim: int, reverse: bool) -> Tensor:
        directions.append(reverse)
        return scan_steps(u, decay, cut, dim=dim, reverse=reverse)

    u, decay = arguments((2, 3), per_step=True)
    differentiable_scan(u, decay, None, dim=1, reverse=True, forward=forward).sum().backward()
    assert directions == [True, False]


def test_vmap_and_functional_gradients() -> None:
    torch.manual_seed(0)
    u, decay, cut = torch.randn(3, 2, 5), torch.rand(2, 5), torch.rand(2, 3, 5) < 0.3

    def scan(u: Tensor, decay: Tensor, cut: Tensor) -> Tensor:
        return differentiable_scan(u, decay, cut, dim=1, reverse=True)

    mapped = torch.func.vmap(scan, in_dims=(0, None, 1))(u, decay, cut)
    gradients = torch.func.vmap(torch.func.grad(lambda *a: scan(*a).square().sum(), argnums=1), in_dims=(0, None, 1))(
        u, decay, cut
    )
    for i in range(3):
        assert torch.allclose(mapped[i], scan(u[i], decay, cut[:, i]))
        one = decay.clone().requires_grad_()
        scan(u[i], one, cut[:, i]).square().sum().backward()
        assert torch.allclose(gradients[i], one.grad)
