"""compute_gae on tensors that are spread over ranks."""

from __future__ import annotations

from typing import Any

from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.ranks import RANKS, assert_equal_over_ranks, assert_runs_on_shards
from rl_triton_gae import compute_gae
from torch import Tensor

CALLS = (
    ("rewards", "values", "terminateds", "last_value"),
    ("rewards", "values", "terminateds", "truncateds", "next_values"),
    ("rewards", "values", "terminateds", "truncateds", "last_value", "lambda_"),
    ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)
AT_STARTS = (
    (*CALLS[0], "next_start"),
    (*CALLS[3], "next_start", "next_start_truncated"),
)


@RANKS
def test_split_along_time(ranks: int, device: str) -> None:
    assert_equal_over_ranks(compute_gae, CALLS, ranks, device)


@RANKS
def test_split_along_time_with_flags_at_starts(ranks: int, device: str) -> None:
    assert_equal_over_ranks(FlagsAtStarts(compute_gae), AT_STARTS, ranks, device)


def targets(**given: Any) -> Tensor:
    return compute_gae(**given, return_targets=True)[1]


def test_targets_split_along_time() -> None:
    assert_equal_over_ranks(targets, CALLS[3:], 3, "cpu")


def test_on_shards() -> None:
    assert_runs_on_shards(compute_gae, CALLS, over_time=True)
    assert_runs_on_shards(FlagsAtStarts(compute_gae), AT_STARTS, over_time=True)
