"""Layouts: strides folded to two batch axes find every element of any view, and only what needs more is copied."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_core.engine import environment
from rl_triton_core.engine.layout import Strides, empty_output, fold_axes, fold_batch, in_place_or_copied
from torch import Tensor


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """A view of up to four axes of consecutive integers, so that every element says where in memory it is."""
    axes = draw(st.integers(1, 4))
    base_shape = tuple(draw(st.lists(st.integers(1, 6), min_size=axes, max_size=axes)))
    x = torch.arange(torch.Size(base_shape).numel()).view(base_shape)
    for axis in range(axes):
        size, change = x.shape[axis], draw(st.sampled_from(["keep", "keep", "slice", "step", "expand"]))
        if change == "slice":
            start = draw(st.integers(0, size - 1))
            x = x.narrow(axis, start, draw(st.integers(1, size - start)))
        elif change == "step":
            x = x[(slice(None),) * axis + (slice(draw(st.integers(0, size - 1)), None, draw(st.integers(2, 3))),)]
        elif change == "expand":
            x = x.narrow(axis, 0, 1).expand(*(draw(st.integers(1, 5)) if i == axis else -1 for i in range(axes)))
    return x.permute(draw(st.permutations(range(axes))))


def offsets(x: Tensor, dim: int | None) -> Tensor:
    """Where each (row, step) is in memory, counted from the first element, as [rows, steps]."""
    rows_first = x.unsqueeze(-1) if dim is None else x.movedim(dim, -1)
    return rows_first.reshape(-1, rows_first.shape[-1]) - x.storage_offset()


def walked(strides: Strides, rows: int, steps: int) -> Tensor:
    """The same as the kernel computes it."""
    row, step = torch.arange(rows)[:, None], torch.arange(steps)
    if strides.inner_size is None or strides.inner is None:
        return row * strides.outer + step * strides.time
    outer, inner = row // strides.inner_size, row % strides.inner_size
    return outer * strides.outer + inner * strides.inner + step * strides.time


def two_axes_suffice(starts: Tensor) -> bool:
    """Whether some inner size makes rows start at multiples of one inner and one outer stride, by trying all."""
    rows = len(starts)
    for size in (n for n in range(1, rows + 1) if rows % n == 0):
        grid = starts.view(-1, size)
        inner = grid[0, 1] - grid[0, 0] if size > 1 else 0
        outer = grid[1, 0] - grid[0, 0] if size < rows else 0
        if torch.equal(grid, torch.arange(rows // size)[:, None] * outer + torch.arange(size) * inner):
            return True
    return False


@given(views(), st.data())
def test_folded_strides_find_every_element(x: Tensor, data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from([None, *range(x.dim())]))
    expected = offsets(x, dim)
    strides = fold_batch(x.shape, x.stride(), dim)
    assert (strides is not None) == two_axes_suffice(expected[:, 0])
    if strides is not None:
        assert torch.equal(walked(strides, *expected.shape), expected)
        assert strides.extent(*expected.shape) == expected.max()


@pytest.mark.parametrize(
    ("x", "dim", "expected"),
    [
        (torch.empty(5, 7), 1, Strides(1, 7, None, None)),
        (torch.empty(5, 7), 0, Strides(7, 1, None, None)),
        (torch.empty(7, 5).t(), 1, Strides(5, 1, None, None)),
        (torch.empty(5, 14)[:, ::2], 1, Strides(2, 14, None, None)),
        (torch.empty(5, 1).expand(5, 7), 1, Strides(0, 1, None, None)),
        (torch.empty(7).expand(5, 7), 1, Strides(1, 0, None, None)),
        (torch.empty(7), 0, Strides(1, 0, None, None)),
        (torch.empty(5, 7, 3), 1, Strides(3, 21, 1, 3)),
        (torch.empty(7, 5, 3), 0, Strides(15, 1, None, None)),
        (torch.empty(2, 5, 7, 3), 2, Strides(3, 21, 1, 3)),
        (torch.empty(5, 1, 7), 2, Strides(1, 7, None, None)),
        (torch.empty(5, 7, 1).expand(5, 7, 3), 1, Strides(1, 7, 0, 3)),
        (torch.empty(5, 3), None, Strides(1, 1, None, None)),
    ],
)
def test_common_layouts(x: Tensor, dim: int | None, expected: Strides) -> None:
    assert fold_batch(x.shape, x.stride(), dim) == expected


@pytest.mark.parametrize(
    ("x", "dim", "expected"),
    [
        (torch.empty(5, 7, 4), 1, Strides(4, 28, None, None, 1, 4)),
        (torch.empty(7, 5, 4), 0, Strides(20, 4, None, None, 1, 4)),
        (torch.empty(5, 4, 7).transpose(1, 2), 1, Strides(1, 28, None, None, 7, 4)),
        (torch.empty(5, 4), None, Strides(0, 4, None, None, 1, 4)),
        (torch.empty(5, 1, 4), 1, Strides(0, 4, None, None, 1, 4)),
        (torch.empty(5, 7, 2)[..., :1], 1, Strides(2, 14, None, None, 1, 1)),
        (torch.empty(5, 7, 3, 4), 1, Strides(12, 84, 4, 3, 1, 4)),
        (torch.empty(5, 7, 1).expand(5, 7, 4), 1, Strides(1, 7, None, None, 0, 4)),
    ],
)
def test_the_last_axis_of_a_wide_tensor_is_its_own(x: Tensor, dim: int | None, expected: Strides) -> None:
    strides = fold_axes(x.shape, x.stride(), dim, wide=True)
    assert strides == expected
    rows = x[..., 0].numel() // (1 if dim is None else x.shape[dim])
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    assert strides.extent(rows, 1 if dim is None else x.shape[dim]) == last


def test_a_wide_tensor_of_three_batch_axes_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PERFORMANCE_WARNINGS", True)
    x = three_batch_axes().unsqueeze(-1).expand(-1, -1, -1, -1, 2)
    with pytest.warns(UserWarning, match="next_q_values_all: copied"):
        copy, strides = in_place_or_copied("next_q_values_all", x, 1, wide=True)
    assert torch.equal(copy, x)
    assert strides == fold_axes(copy.shape, copy.stride(), 1, wide=True)


def three_batch_axes() -> Tensor:
    """[3, 8, 4, 5], with time second and no two of the other axes one behind the other."""
    return torch.randn(4, 3, 5, 8).permute(1, 3, 0, 2)


@pytest.mark.parametrize("asked", [False, True])
def test_only_three_batch_axes_are_copied(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setattr(environment, "PERFORMANCE_WARNINGS", asked)
    in_place = (torch.empty(7, 5).t(), torch.empty(5, 14)[:, ::2], torch.empty(5, 1).expand(5, 7), torch.empty(5, 7, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in in_place:
            assert in_place_or_copied("values", x, 1)[0] is x
    x = three_batch_axes()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        copy, strides = in_place_or_copied("values", x, 1)
    assert torch.equal(copy, x)
    assert copy.data_ptr() != x.data_ptr()
    assert strides == fold_batch(copy.shape, copy.stride(), 1)
    assert len(caught) == asked
    if asked:
        message = str(caught[0].message)
        assert message.startswith("values: copied")
        assert str(tuple(x.shape)) in message
        assert "contiguous" in message


@pytest.mark.parametrize(
    "like",
    [torch.empty(5, 7), torch.empty(7, 5).t(), torch.empty(7, 5, 3).permute(1, 0, 2), three_batch_axes()],
    ids=["contiguous", "transposed", "permuted", "three batch axes"],
)
def test_an_output_lies_like_the_first_field(like: Tensor) -> None:
    output = empty_output(like, torch.float64)
    assert (output.shape, output.stride(), output.dtype) == (like.shape, like.stride(), torch.float64)


def test_an_output_is_dense() -> None:
    for like in (
        torch.empty(5, 1).expand(5, 7),
        torch.empty(7, 1).expand(7, 5).t(),
        torch.empty(5, 1, 1).expand(5, 7, 3),
    ):
        assert empty_output(like, torch.float32).is_contiguous()
    sliced = empty_output(torch.empty(10, 14)[::2, ::2], torch.float32)
    assert sliced.shape == (5, 7)
    assert sliced.is_contiguous()
