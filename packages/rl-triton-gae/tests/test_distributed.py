"""compute_gae on tensors that are spread over ranks."""

from __future__ import annotations

from rl_triton_core.testing.ranks import RANKS, assert_equal_over_ranks, assert_runs_on_shards
from rl_triton_gae import compute_gae

CALLS = (
    ("rewards", "values", "terminateds", "last_value"),
    ("rewards", "values", "terminateds", "truncateds", "next_values"),
    ("rewards", "values", "terminateds", "truncateds", "last_value", "lambda_"),
    ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)


@RANKS
def test_split_along_time(ranks: int, device: str) -> None:
    assert_equal_over_ranks(compute_gae, CALLS, ranks, device)


def test_on_shards() -> None:
    assert_runs_on_shards(compute_gae, CALLS, over_time=True)
