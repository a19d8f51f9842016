"""compute_lambda_returns on tensors that are spread over ranks."""

from __future__ import annotations

from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.ranks import RANKS, assert_equal_over_ranks, assert_runs_on_shards
from rl_triton_lambda import compute_lambda_returns

CALLS = (
    ("rewards", "next_values", "terminateds"),
    ("rewards", "next_values", "terminateds", "truncateds", "bootstrap_values", "gamma", "lambda_"),
)
AT_STARTS = (
    (*CALLS[0], "next_start"),
    (*CALLS[1], "next_start", "next_start_truncated"),
)


@RANKS
def test_split_along_time(ranks: int, device: str) -> None:
    assert_equal_over_ranks(compute_lambda_returns, CALLS, ranks, device)


@RANKS
def test_split_along_time_with_flags_at_starts(ranks: int, device: str) -> None:
    assert_equal_over_ranks(FlagsAtStarts(compute_lambda_returns), AT_STARTS, ranks, device)


def test_on_shards() -> None:
    assert_runs_on_shards(compute_lambda_returns, CALLS, over_time=True)
    assert_runs_on_shards(FlagsAtStarts(compute_lambda_returns), AT_STARTS, over_time=True)
