"""compute_discounted_returns on tensors that are spread over ranks."""

from __future__ import annotations

from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.ranks import RANKS, assert_equal_over_ranks, assert_runs_on_shards
from rl_triton_returns import compute_discounted_returns

CALLS = (
    ("rewards", "terminateds", "last_value"),
    ("rewards", "terminateds", "truncateds"),
    ("rewards", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)
AT_STARTS = (
    (*CALLS[0], "next_start"),
    (*CALLS[2], "next_start", "next_start_truncated"),
)


@RANKS
def test_split_along_time(ranks: int, device: str) -> None:
    assert_equal_over_ranks(compute_discounted_returns, CALLS, ranks, device)


@RANKS
def test_split_along_time_with_flags_at_starts(ranks: int, device: str) -> None:
    assert_equal_over_ranks(FlagsAtStarts(compute_discounted_returns), AT_STARTS, ranks, device)


def test_on_shards() -> None:
    assert_runs_on_shards(compute_discounted_returns, CALLS, over_time=True)
    assert_runs_on_shards(FlagsAtStarts(compute_discounted_returns), AT_STARTS, over_time=True)
