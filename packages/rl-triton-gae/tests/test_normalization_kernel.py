"""normalize_advantages by its kernels against exact statistics: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_gae import normalize_advantages
from rl_triton_gae.normalization import _launch
from torch import Tensor

pytestmark = kernel_marks()
DEVICE = kernel_device()
SIZES = [1, 2, 77, 2048, 5000] if INTERPRETED else [1, 2, 77, 2048, 4096 * 128, 2048 * 512 + 1, 2**23 + 5]


def exactly(
    x: Tensor, mask: Tensor | None = None, *, unbiased: bool = True, eps: float = 1e-8, shift_mean: bool = True
) -> Tensor:
    """The definition in float64, with exactly rounded sums."""
    valid = torch.ones_like(x, dtype=torch.bool) if mask is None else mask != 0
    numbers = x[valid].double()
    result = torch.zeros(x.shape, dtype=torch.float64)
    n = numbers.numel()
    mean = math.fsum(numbers.tolist()) / max(n, 1)
    distances = numbers - mean
    squares = math.fsum(distances.square().tolist()) - math.fsum(distances.tolist()) ** 2 / max(n, 1)
    numerators = distances if shift_mean else numbers
    tells = n > 1 and bool((numbers != numbers[0]).any())
    result[valid] = numerators / (math.sqrt(squares / (n - unbiased)) + eps) if tells else numerators * (not shift_mean)
    return result


def drawn(size: int, offset: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return (torch.randn(size, generator=generator, dtype=torch.float64) + offset).to(dtype)


def masked(size: int) -> Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(size + 1)) < 0.4


@pytest.mark.parametrize("options", [{}, {"unbiased": False}, {"shift_mean": False}, {"eps": 0.5}], ids=str)
@pytest.mark.parametrize("with_mask", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("size", SIZES)
def test_against_the_definition(size: int, with_mask: bool, options: dict[str, Any]) -> None:
    for dtype, offset in ((torch.float32, 1e3), (torch.float64, 0.0)):
        x, mask = drawn(size, offset, dtype), masked(size) if with_mask else None
        expected = exactly(x, mask, **options)
        if mask is not None:
            x = x.masked_fill(~mask, math.nan)
        actual = normalize_advantages(x.to(DEVICE), None if mask is None else mask.to(DEVICE), **options)
        tolerance = 1e-6 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    x = (drawn(5000) * 9).to(dtype)
    for mask in (masked(5000), masked(5000).double()):
        y = normalize_advantages(x.to(DEVICE), mask.to(DEVICE))
        assert y.dtype == (torch.float32 if dtype == torch.int64 else dtype)
        torch.testing.assert_close(y.cpu(), exactly(x, mask).to(y.dtype))


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("number", [0.1, 1e30, -3.0, 1e-40])
def test_constant_advantages_say_nothing(number: float, eps: float) -> None:
    size = SIZES[-1]
    for dtype in (torch.float32, torch.float64):
        x = torch.full((size,), number, dtype=dtype, device=DEVICE)
        for mask in (None, masked(size).to(DEVICE)):
            assert (normalize_advantages(x, mask, eps=eps) == 0).all()
            kept = x if mask is None else x * mask
            assert torch.equal(normalize_advantages(x, mask, eps=eps, shift_mean=False), kept)
        assert (normalize_advantages(x, torch.zeros_like(x), eps=eps) == 0).all()


def test_nothing_else_is_not_finite() -> None:
    x = drawn(5000)
    for poison in (math.nan, math.inf):
        y = normalize_advantages(torch.where(torch.arange(5000) == 4000, poison, x).to(DEVICE))
        assert y.isnan().all()


def test_layouts() -> None:
    x = drawn(48 * 70).view(48, 70)
    mask = masked(48 * 70).view(48, 70)
    expected = exactly(x, mask)
    views = [x, x.t().contiguous().t(), torch.stack([x, x], -1)[..., 0], torch.cat([x, x], 1)[:, :70]]
    for of_mask in (mask, mask.t().contiguous().t()):
        for view in views:
            y = normalize_advantages(view.to(DEVICE) if view.is_contiguous() else _moved(view), of_mask.to(DEVICE))
            torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-6, atol=1e-6)
    row = drawn(70)
    y = normalize_advantages(row.to(DEVICE).expand(3, 70))
    torch.testing.assert_close(y.cpu().double(), exactly(row.expand(3, 70)), rtol=1e-6, atol=1e-6)


def _moved(view: Tensor) -> Tensor:
    """A view on the kernels' device with the same strides."""
    moved = torch.empty_strided(view.shape, view.stride(), dtype=view.dtype, device=DEVICE)
    return moved.copy_(view)


def test_the_same_from_run_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(SIZES[-1]).to(DEVICE)
    first = normalize_advantages(x)
    assert torch.equal(normalize_advantages(x.clone()), first)
    # However many programs share the work, up to rounding.
    monkeypatch.setattr(_launch, "MOST_COLUMNS", 2)
    monkeypatch.setattr(_launch, "PROGRAMS", 1)
    torch.testing.assert_close(normalize_advantages(x), first)


def test_gradients_are_recorded_where_wanted() -> None:
    x = drawn(300).to(DEVICE).requires_grad_()
    y = normalize_advantages(x)
    assert y.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(normalize_advantages(x), y)


@pytest.mark.skipif(INTERPRETED, reason="waits for nothing anyway")
def test_waits_for_nothing() -> None:
    x, mask = drawn(5000).to(DEVICE), masked(5000).to(DEVICE)
    normalize_advantages(x, mask)
    torch.cuda.set_sync_debug_mode("error")
    try:
        normalize_advantages(x, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
