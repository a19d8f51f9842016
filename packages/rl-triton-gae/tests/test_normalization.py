"""normalize_advantages against statistics in exact fractions, and over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rl_triton_core.distributed import time_sharded
from rl_triton_core.testing.ranks import on_ranks
from rl_triton_gae import compute_gae, normalize_advantages
from torch import Tensor

NAN = math.nan


def exactly(
    x: Tensor, mask: Tensor | None = None, *, unbiased: bool = True, eps: float = 1e-8, shift_mean: bool = True
) -> Tensor:
    """The definition, with sums in fractions."""
    valid = torch.ones_like(x, dtype=torch.bool) if mask is None else mask != 0
    numbers = [Fraction(number) for number in x[valid].tolist()]
    result = torch.zeros(x.shape, dtype=torch.float64)
    n = len(numbers)
    mean = sum(numbers, Fraction()) / max(n, 1)
    squares = sum(((number - mean) ** 2 for number in numbers), Fraction())
    divisor = None if n < 2 or squares == 0 else math.sqrt(squares / (n - unbiased)) + eps
    shifted = [float(number - mean) if shift_mean else float(number) for number in numbers]
    if divisor is None:
        scaled = [0.0 if shift_mean else number for number in shifted]
    else:
        scaled = [number / divisor for number in shifted]
    result[valid] = torch.tensor(scaled, dtype=torch.float64)
    return result


def drawn(shape: tuple[int, ...] = (7, 33), offset: float = 0.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + offset).to(dtype)


MASK = torch.rand(7, 33, generator=torch.Generator().manual_seed(1)) < 0.4


@pytest.mark.parametrize("options", [{}, {"unbiased": False}, {"shift_mean": False}, {"eps": 0.5}], ids=str)
@pytest.mark.parametrize("mask", [None, MASK, MASK.double()], ids=["all", "mask", "float mask"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_against_fractions(offset: float, mask: Tensor | None, options: dict[str, Any]) -> None:
    x = drawn(offset=offset)
    torch.testing.assert_close(normalize_advantages(x, mask, **options), exactly(x, mask, **options).float())
    x = x.double()
    torch.testing.assert_close(
        normalize_advantages(x, mask, **options), exactly(x, mask, **options), rtol=1e-11, atol=1e-11
    )


def test_what_the_mask_leaves_out_is_not_read() -> None:
    x = drawn().masked_fill(~MASK, NAN).requires_grad_()
    y = normalize_advantages(x, MASK)
    assert torch.equal(y, normalize_advantages(x.nan_to_num(7.0), MASK))
    assert (y[~MASK] == 0).all()
    weights = drawn().sin()
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    assert (gradient[~MASK] == 0).all()
    assert gradient.isfinite().all()


def test_derivatives() -> None:
    x = drawn((2, 5), dtype=torch.float64).requires_grad_()
    for options in ({}, {"shift_mean": False}, {"unbiased": False, "eps": 0.1}):
        assert torch.autograd.gradcheck(lambda x, o=options: normalize_advantages(x, MASK[:2, :5], **o), x)  # type: ignore[misc]
    constant = torch.full((2, 5), 0.1, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(normalize_advantages(constant).sum(), constant)
    assert (gradient == 0).all()


@pytest.mark.parametrize("eps", [0.0, 1e-8])
@pytest.mark.parametrize("number", [0.1, 1e30, -3.0, 1e-40])
def test_constant_and_single_advantages_say_nothing(number: float, eps: float) -> None:
    mask = torch.zeros(3, 1000)
    mask[1, 5] = 1
    for valid in (None, torch.ones(3, 1000), mask, torch.zeros(3, 1000)):
        # In float64, sums of equal numbers are rounded.
        x = torch.full((3, 1000), number, dtype=torch.float64)
        assert (normalize_advantages(x, valid, eps=eps) == 0).all()
        kept = x if valid is None else x * valid
        assert torch.equal(normalize_advantages(x, valid, eps=eps, shift_mean=False), kept)
    assert normalize_advantages(torch.full((1, 1), number), unbiased=True).item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    x = (drawn() * 3).to(dtype)
    y = normalize_advantages(x, MASK)
    assert y.dtype == (torch.float32 if dtype == torch.int64 else dtype)
    torch.testing.assert_close(y, exactly(x, MASK).to(y.dtype))


def test_layouts_and_empty_tensors() -> None:
    x = drawn((8, 6))
    expected = normalize_advantages(x)
    for view in (x.t(), x.t().contiguous().t(), torch.stack([x, x], -1)[..., 0]):
        torch.testing.assert_close(normalize_advantages(view), expected.t() if view.shape == (6, 8) else expected)
    assert normalize_advantages(x[:1].expand(4, 6)).shape == (4, 6)
    assert normalize_advantages(x[:, :0]).shape == (8, 0)
    assert normalize_advantages(x[:, :0], x[:, :0]).shape == (8, 0)


def test_one_graph() -> None:
    compiled = torch.compile(normalize_advantages, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(drawn(), MASK), normalize_advantages(drawn(), MASK))
    torch.testing.assert_close(
        torch.func.vmap(normalize_advantages)(drawn((3, 2, 5))),
        torch.stack([normalize_advantages(x) for x in drawn((3, 2, 5))]),
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: normalize_advantages([1.0]), TypeError, r"advantages: expected a torch\.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: normalize_advantages(torch.ones(2, 3), torch.ones(2)), ValueError, r"mask: expected shape \(2, 3\)"),
        (
            lambda: normalize_advantages(torch.ones(2), eps=-1.0),
            ValueError,
            "eps: expected a number that is not negative",
        ),
        (lambda: normalize_advantages(torch.ones(2), eps=NAN), ValueError, "eps: expected .* got nan"),
        (lambda: normalize_advantages(torch.ones(2), eps="0"), TypeError, "eps: expected .* got str"),  # type: ignore[arg-type]
        (lambda: normalize_advantages(torch.ones(())), ValueError, "advantages: expected at least one dimension"),
    ],
)
def test_a_bad_call_says_what_is_wrong(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_gae_normalizes_on_request() -> None:
    given: dict[str, Any] = {"rewards": drawn(), "values": drawn().cos(), "terminateds": MASK & ~MASK.roll(1, 0)}
    plain, targets = compute_gae(**given, mask=MASK, return_targets=True)
    advantages, same_targets = compute_gae(**given, mask=MASK, return_targets=True, normalize=True)
    assert torch.equal(advantages, normalize_advantages(plain, MASK))
    assert torch.equal(same_targets, targets)
    buffer = torch.full_like(plain, NAN)
    assert compute_gae(**given, normalize=True, out=buffer) is buffer
    assert torch.equal(buffer, normalize_advantages(compute_gae(**given)))


def check_ranks() -> None:
    """Every rank has its own part: uneven, one of them empty, and masked."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    bounds = [0, 3, 3, 7] if ranks == 3 else [0, 2, 7]
    mine = slice(bounds[rank], bounds[rank + 1])
    group = dist.group.WORLD
    x = drawn(offset=100.0)
    for mask in (None, MASK):
        whole = x.clone().requires_grad_()
        part = x[mine].clone().requires_grad_()
        expected = normalize_advantages(whole, mask)
        y = normalize_advantages(part, None if mask is None else mask[mine], group=group)
        torch.testing.assert_close(y, expected[mine])
        (expected * x.sin()).sum().backward()
        (y * x.sin()[mine]).sum().backward()
        assert whole.grad is not None
        assert part.grad is not None
        torch.testing.assert_close(part.grad, whole.grad[mine], rtol=1e-4, atol=1e-6)
    # Equal everywhere, and the statistics of ranks that differ in size do not add up to a rounding error.
    for number in (0.1, 0.7, 1 / 3, 1.1, 123.4):
        equal = torch.full((mine.stop - mine.start, 5), number, dtype=torch.float64)
        assert (normalize_advantages(equal, group=group, eps=0.0) == 0).all()
    with time_sharded(), pytest.raises(NotImplementedError, match="normalize"):
        compute_gae(x, x, MASK, normalize=True)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_their_statistics(ranks: int) -> None:
    on_ranks(ranks, "cpu", check_ranks)
