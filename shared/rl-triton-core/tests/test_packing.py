"""segmented_scan of packed sequences, on the CPU, and what every function says of `cu_seqlens`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_triton_core import reference, segmented_scan
from rl_triton_core.engine import dispatch
from rl_triton_core.engine.packing import packing_of
from rl_triton_core.reference import SequencesApart
from rl_triton_core.testing.calls import Draw, assert_packs, with_sequences
from torch import Tensor

ORACLE = SequencesApart(reference.segmented_scan)


def drawn(shape: tuple[int, int], names: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of (rows, steps)."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {"inputs": draw.numbers(), "decays": draw.numbers().sigmoid()}
    if "resets" in names:
        arguments["resets"] = draw.flags("random")
    if "initial" in names:
        arguments["initial"] = draw.numbers(shape[:1])
    return arguments


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("names", ["", "resets", "initial", "resets, initial"])
@pytest.mark.parametrize("shape", [(1, 90), (3, 61)], ids=str)
def test_sequences_give_what_they_give_apart(shape: tuple[int, int], names: str, reverse: bool) -> None:
    arguments = drawn(shape, names) | {"reverse": reverse}
    assert_packs(segmented_scan, reference.segmented_scan, arguments, device="cpu")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_any_offsets(lengths: list[int], before: int, behind: int, reverse: bool) -> None:
    steps = before + sum(lengths) + behind
    offsets = before + torch.tensor([0, *lengths]).cumsum(0)
    x = torch.randn(steps, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(steps))
    initial = torch.randn(len(lengths), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    arguments: dict[str, Any] = {"inputs": x, "decays": x.sigmoid(), "initial": initial, "reverse": reverse}
    y = segmented_scan(**arguments, cu_seqlens=offsets, time_dim=0)
    expected = ORACLE(**arguments, cu_seqlens=offsets) if sum(lengths) else torch.zeros_like(x)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("names", ["", "resets, initial"])
def test_derivatives_are_those_of_the_sequences_apart(names: str, reverse: bool) -> None:
    packed = with_sequences(drawn((3, 40), names, torch.float64)) | {"reverse": reverse}
    leaves = [name for name, x in packed.items() if isinstance(x, Tensor) and x.is_floating_point()]
    weights = torch.randn(packed["inputs"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients(function: Any) -> tuple[Tensor | None, ...]:
        inputs = [packed[name].requires_grad_() for name in leaves]
        return torch.autograd.grad((function(**packed) * weights).sum(), inputs)

    for actual, expected in zip(gradients(segmented_scan), gradients(ORACLE), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_inside_pytorch() -> None:
    packed = with_sequences(drawn((3, 40), "resets, initial", torch.float64))
    inputs, decays, resets, initial, cu_seqlens = (
        packed[name] for name in ("inputs", "decays", "resets", "initial", "cu_seqlens")
    )
    inputs, decays = inputs.nan_to_num(0.0), decays.nan_to_num(0.0)

    def scan(x: Tensor) -> Tensor:
        return segmented_scan(x, decays, resets=resets, initial=initial, cu_seqlens=cu_seqlens, time_dim=0)

    expected = scan(inputs)
    torch.testing.assert_close(torch.compile(scan, fullgraph=True, backend="eager")(inputs), expected)
    several = torch.stack([inputs, inputs.flip(0)])
    torch.testing.assert_close(torch.vmap(scan)(several), torch.stack([scan(x) for x in several]))
    operator = torch.ops.rl_triton.segmented_scan_cu_seqlens.default
    torch.library.opcheck(operator, (inputs.requires_grad_(), decays, resets, initial, cu_seqlens, 0))
    with pytest.raises(NotImplementedError, match="expected the same sequences for every entry of a vmap"):
        torch.vmap(lambda offsets: segmented_scan(inputs, decays, cu_seqlens=offsets, time_dim=0))(
            cu_seqlens.expand(2, -1)
        )


def test_offsets_of_any_layout_and_width() -> None:
    packed = with_sequences(drawn((3, 61), "initial"))
    expected = segmented_scan(**packed)
    for offsets in (packed["cu_seqlens"].to(torch.int32), packed["cu_seqlens"].repeat_interleave(3)[::3]):
        torch.testing.assert_close(segmented_scan(**packed | {"cu_seqlens": offsets}), expected, rtol=0, atol=0)


X = torch.ones(6, 2)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"cu_seqlens": [0, 6]}, TypeError, "cu_seqlens: expected a torch.Tensor, got list"),
        (
            {"cu_seqlens": torch.tensor([0.0, 6.0])},
            TypeError,
            "cu_seqlens: expected an integer dtype, got torch.float32",
        ),
        (
            {"cu_seqlens": torch.tensor([0, 6], dtype=torch.int16)},
            TypeError,
            "cu_seqlens: expected int32 or int64, got torch.int16",
        ),
        (
            {"cu_seqlens": torch.tensor([[0, 6]])},
            ValueError,
            r"cu_seqlens: expected shape \(num_sequences \+ 1,\), .* got \(1, 2\)",
        ),
        ({"cu_seqlens": torch.empty(0, dtype=torch.int64)}, ValueError, r"cu_seqlens: .* got \(0,\)"),
        ({"time_dim": 1}, ValueError, "time_dim: expected 0 with cu_seqlens, .* axis of inputs, got 1"),
        (
            {"initial": torch.ones(2)},
            ValueError,
            r"initial: expected shape \(2, 2\) \(the 2 sequences of cu_seqlens, inputs \(6, 2\)\), got \(2,\)",
        ),
        (
            {"cu_seqlens": torch.empty(3, dtype=torch.int64, device="meta")},
            RuntimeError,
            "cu_seqlens: expected a tensor on cpu like inputs, got one on meta",
        ),
    ],
)
def test_errors(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"cu_seqlens": torch.tensor([0, 2, 6]), "time_dim": 0}
    with pytest.raises(error, match=message):
        segmented_scan(X, X, **arguments | changed)


@pytest.mark.parametrize("offsets", [[0, 3, 2], [-1, 3, 6], [0, 3, 7]])
def test_warns_of_offsets_that_are_none(offsets: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "CORRECTNESS_WARNINGS", True)
    with pytest.warns(UserWarning, match="cu_seqlens: expected offsets that never decrease, from 0 .* to 6"):
        segmented_scan(X, X, cu_seqlens=torch.tensor(offsets), time_dim=0)
    segmented_scan(X, X, cu_seqlens=torch.tensor([0, 0, 6]), time_dim=0)


def test_open_ends() -> None:
    offsets, like = torch.tensor([1, 3, 3, 4]), torch.empty(6)
    backward, forward = (packing_of(offsets, like, 0, reverse=reverse) for reverse in (True, False))
    assert backward.inside.tolist() == forward.inside.tolist() == [False, True, True, True, False, False]
    assert backward.exists.tolist() == forward.exists.tolist() == [True, False, True]
    assert backward.at_open_ends(0).nonzero().flatten().tolist() == [2, 3]
    assert forward.at_open_ends(0).nonzero().flatten().tolist() == [1, 3]
