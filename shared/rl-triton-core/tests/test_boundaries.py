"""What flags mean, on whole tensors."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from rl_triton_core.boundaries import (
    add_discounted,
    check_boundary,
    check_continuation,
    columns,
    continuations,
    cuts_before,
    episode_ends,
    flags_behind,
    interrupted,
    warn_of_nan,
    warn_of_truncations,
)
from torch import Tensor


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_both_flag_conventions(dtype: torch.dtype) -> None:
    ends = torch.tensor([[0, 1, 0, 0, 1]]).to(dtype)
    assert cuts_before(ends, 1, starts_at=False).tolist() == [[False, False, True, False, False]]
    starts = torch.tensor([[1, 0, 1, 0, 0]]).to(dtype)
    assert cuts_before(starts, 1, starts_at=True).tolist() == [[True, False, True, False, False]]
    assert torch.equal(cuts_before(ends.t(), 0, starts_at=False).t(), cuts_before(ends, 1, starts_at=False))
    assert cuts_before(ends[:, :0], 1, starts_at=False).shape == (1, 0)


def test_two_flag_conventions_and_no_other() -> None:
    check_boundary("ends_at")
    check_boundary("starts_at")
    bad: tuple[tuple[Any, type[Exception], str], ...] = (
        ("ends at", ValueError, "'ends at'"),
        ("", ValueError, "''"),
        (True, TypeError, "bool"),
        (None, TypeError, "NoneType"),
        (["ends_at"], TypeError, "list"),
        (torch.ones(3), TypeError, "Tensor"),
    )
    for boundary, error, got in bad:
        with pytest.raises(error) as caught:
            check_boundary(boundary)
        assert str(caught.value) == f"boundary: expected 'ends_at' or 'starts_at', got {got}"


def test_an_episode_ends_by_either_flag() -> None:
    terminateds, truncateds = torch.tensor([True, False, False, True]), torch.tensor([False, True, False, True])
    assert episode_ends(terminateds, truncateds).tolist() == [True, True, False, True]
    assert episode_ends(terminateds, None) is terminateds


@pytest.mark.parametrize("dim", [0, 1])
def test_an_episode_goes_on_outside_after_a_truncation_and_the_last_column(dim: int) -> None:
    truncateds = torch.tensor([[False, True, False, False]]).movedim(1, dim)
    before = truncateds.clone()
    assert interrupted(before, truncateds, dim).flatten().tolist() == [False, True, False, True]
    assert interrupted(truncateds, None, dim).flatten().tolist() == [False, False, False, True]
    assert torch.equal(truncateds, before)


def test_one_continuation_at_most() -> None:
    x = torch.ones(1)
    check_continuation(x, None, None)
    check_continuation(None, x, None)
    check_continuation(None, None, None)
    with pytest.raises(ValueError, match="bootstrap_values and next_values: expected at most one"):
        check_continuation(x, None, x)


def test_truncations_need_something_to_continue_with() -> None:
    x = torch.ones(1)
    with pytest.warns(UserWarning, match="pass bootstrap_values.* or next_values$"):
        warn_of_truncations(x, None, None)
    with pytest.warns(UserWarning, match=r"pass bootstrap_values \(V of the final observation at truncated steps\)$"):
        warn_of_truncations(x, None, takes_next_values=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_truncations(None, None, None)
        warn_of_truncations(x, x, None)
        warn_of_truncations(x, None, x)


NAN = math.nan


def test_nan_in_a_forward_scan_is_told() -> None:
    x, bad = torch.ones(2), torch.tensor([1.0, NAN])
    with pytest.warns(UserWarning, match=r"^seed_values: holds NaN; .* every later step") as caught:
        warn_of_nan({"inputs": x, "gamma": 0.9, "nothing": None, "seed_values": bad})
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_nan({"inputs": x, "counts": torch.ones(2, dtype=torch.int64)})
        # There are no numbers to look at.
        warn_of_nan({"inputs": bad.to("meta")})
        torch.func.vmap(lambda x: (warn_of_nan({"inputs": x}), x)[1])(bad)


VALUES = torch.tensor([[1.0, 2.0, NAN, 4.0, NAN]])
TERMINATEDS = torch.tensor([[False, True, False, False, False]])
TRUNCATEDS = torch.tensor([[False, True, False, True, False]])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("truncateds", "given", "expected"),
    [
        (None, {}, [2.0, 0.0, 4.0, NAN, 0.0]),
        (None, {"last_value": torch.tensor([9.0])}, [2.0, 0.0, 4.0, NAN, 9.0]),
        (TRUNCATEDS, {}, [2.0, 0.0, 4.0, 0.0, 0.0]),
        (TRUNCATEDS, {"last_value": torch.tensor([9.0])}, [2.0, 0.0, 4.0, 0.0, 9.0]),
        (TRUNCATEDS, {"bootstrap_values": torch.tensor([[NAN, NAN, NAN, 7.0, 8.0]])}, [2.0, 0.0, 4.0, 7.0, 8.0]),
        (None, {"bootstrap_values": torch.tensor([[NAN, NAN, NAN, 7.0, 8.0]])}, [2.0, 0.0, 4.0, NAN, 8.0]),
        (TRUNCATEDS, {"next_values": torch.tensor([[5.0, NAN, 6.0, 7.0, 8.0]])}, [5.0, 0.0, 6.0, 7.0, 8.0]),
    ],
)
def test_what_a_step_continues_with(
    truncateds: Tensor | None, given: dict[str, Tensor], expected: list[float], dim: int
) -> None:
    def laid_out(x: Tensor | None) -> Tensor | None:
        return x.movedim(-1, dim) if x is not None and x.dim() == 2 else x

    values = laid_out(VALUES)
    assert values is not None
    # The parts cover every column, those that continue with 0 included.
    continuation = torch.full_like(values, -1.0)
    names = ("bootstrap_values", "last_value", "next_values")
    flags = (laid_out(TERMINATEDS), laid_out(truncateds))
    for part, x in continuations(values, *flags, *(laid_out(given.get(name)) for name in names), dim):  # type: ignore[arg-type]
        part(continuation).copy_(x)
    torch.testing.assert_close(continuation.movedim(dim, -1), torch.tensor([expected]), equal_nan=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_columns(dim: int) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]]).movedim(-1, dim)
    inside, in_last_column, ahead = columns(3, dim)
    assert [part(x).flatten().tolist() for part in (inside, in_last_column, ahead)] == [[1.0, 2.0], [3.0], [2.0, 3.0]]
    in_last_column(x).fill_(9.0)
    assert x.flatten().tolist() == [1.0, 2.0, 9.0]


def test_a_discounted_continuation_is_added_part_by_part() -> None:
    terminateds = torch.tensor([[False, True, False]])
    inside, in_last_column, _ = columns(3, 1)
    parts = [(inside, torch.tensor([[2.0, 0.0]])), (in_last_column, torch.tensor([4.0]))]
    assert add_discounted(torch.ones(1, 3), parts, terminateds, None, 0.5).tolist() == [[2.0, 1.0, 3.0]]
    gamma = torch.tensor([[0.5, NAN, 0.25]])
    assert add_discounted(torch.ones(1, 3), parts, terminateds, gamma, 0.0).tolist() == [[2.0, 1.0, 2.0]]


FLAG = torch.tensor([True, False])


def test_flags_of_the_step_behind_the_last() -> None:
    assert flags_behind("starts_at", None, None) == (None, None)
    assert flags_behind("starts_at", FLAG, None) == (FLAG, None)
    assert flags_behind("starts_at", (FLAG, None), FLAG) == (FLAG, None)
    bad: tuple[tuple[Any, Any, Any, type[Exception], str], ...] = (
        ("ends_at", FLAG, None, ValueError, r'next_start: expected None with boundary="ends_at"'),
        ("starts_at", (FLAG, FLAG), None, TypeError, r"next_start: expected one tensor, .*got tuple of 2"),
        ("starts_at", FLAG, FLAG, TypeError, r"next_start: expected a pair of tensors, .*got Tensor"),
        ("starts_at", (FLAG,), FLAG, ValueError, r"next_start: expected a pair of tensors, got 1"),
        ("begins", None, None, ValueError, r"boundary: expected 'ends_at' or 'starts_at', got 'begins'"),
        (True, None, None, TypeError, r"boundary: expected .*got bool"),
    )
    for boundary, next_start, truncateds, error, message in bad:
        with pytest.raises(error, match=message):
            flags_behind(boundary, next_start, truncateds)
