"""What the caller's buffers have to be."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from rl_triton_core import segmented_scan
from rl_triton_core.engine import buffers
from rl_triton_core.engine.buffers import _share_memory
from torch import Tensor

X = torch.rand(3, 4)


def into(out: Any, **given: Any) -> Tensor:
    return segmented_scan(given.pop("inputs", X), given.pop("decays", X), out=out, **given)


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        ([X], TypeError, "out: expected a torch.Tensor, got list"),
        (X.numpy(), TypeError, "out: expected a torch.Tensor, got ndarray"),
        (torch.empty(3, 4, dtype=torch.float64), TypeError, "out: expected torch.float32, the promoted dtype"),
        (torch.empty(4, 3), ValueError, r"out: expected shape \(3, 4\) like inputs, got \(4, 3\)"),
        (torch.empty(3, 4, device="meta"), RuntimeError, "out: expected a tensor on cpu like inputs, got one on meta"),
        (torch.empty(3, 1).expand(3, 4), ValueError, "out: expected memory of its own for every step"),
        (torch.empty(3, 4, requires_grad=True), RuntimeError, "out: no gradient is recorded through out"),
        (X, ValueError, "out: expected memory of its own, but it overlaps inputs"),
        (X.view(-1).view(3, 4), ValueError, "overlaps inputs"),
    ],
)
def test_errors(out: Any, kind: type[Exception], message: str) -> None:
    before = X.clone()
    with pytest.raises(kind, match=message):
        into(out)
    assert torch.equal(X, before)


def test_gradients_would_be_lost() -> None:
    leaf = torch.rand(3, 4, requires_grad=True)
    out = torch.empty(3, 4)
    with pytest.raises(RuntimeError, match="out: no gradient is recorded through out"):
        into(out, decays=leaf)
    with torch.no_grad():
        assert into(out, decays=leaf) is out


def test_arguments_are_checked_first() -> None:
    with pytest.raises(ValueError, match="decays: expected shape"):
        into(torch.empty(3, 4), decays=torch.rand(3, 5))


def test_empty_buffers() -> None:
    empty = torch.empty(0, 4)
    assert segmented_scan(empty, empty, out=torch.empty(0, 4)).shape == (0, 4)


def test_buffers_inside_a_larger_one() -> None:
    """Interleaved with the inputs, but with no element in common."""
    whole = torch.rand(3, 9)
    out = into(whole[:, 1:8:2], inputs=whole[:, ::2][:, :4], initial=whole[:, 8])
    torch.testing.assert_close(out, into(torch.empty(3, 4), inputs=whole[:, ::2][:, :4], initial=whole[:, 8]))
    with pytest.raises(ValueError, match="overlaps initial"):
        into(whole[:, 1:8:2], initial=whole[:, 3])


def test_shared_elements_are_found() -> None:
    base = torch.arange(24, dtype=torch.int32)
    views = [
        base.as_strided((rows, columns), (row_stride, column_stride), offset)
        for rows, columns in ((2, 3), (3, 2), (1, 4))
        for row_stride, column_stride in ((4, 1), (1, 4), (6, 2), (2, 3))
        for offset in (0, 1, 5)
    ]
    for one, other in itertools.combinations(views, 2):
        expected = bool(set(one.flatten().tolist()) & set(other.flatten().tolist()))
        assert _share_memory(one, other) == expected, (one.stride(), other.stride())
    # Of one element's bytes, too.
    assert _share_memory(base, base.view(torch.int16)[1:2])
    assert not _share_memory(base[:2], base.view(torch.int16)[4:])


def test_a_long_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the safe side."""
    base = torch.zeros(1000)
    one, other = base.as_strided((6, 6), (62, 60)), base.as_strided((6, 6), (66, 58), 1)
    assert not _share_memory(one, other)
    monkeypatch.setattr(buffers, "MOST_TRIALS", 5)
    assert _share_memory(one, other)


def test_compiled_calls_write_into_buffers() -> None:
    out = torch.empty(3, 4)
    compiled = torch.compile(into, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(out), segmented_scan(X, X))
    assert torch.equal(out, segmented_scan(X, X))
