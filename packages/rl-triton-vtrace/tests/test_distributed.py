"""compute_vtrace on tensors that are spread over ranks."""

from __future__ import annotations

from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.ranks import assert_runs_on_shards
from rl_triton_vtrace import compute_vtrace

CALLS = (
    ("log_pi_target", "log_pi_behavior", "values", "rewards", "terminateds", "last_value"),
    ("log_pi_target", "log_pi_behavior", "values", "rewards", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)
AT_STARTS = ((*CALLS[1], "next_start", "next_start_truncated"),)


def test_on_shards() -> None:
    assert_runs_on_shards(compute_vtrace, CALLS, over_time=False)
    assert_runs_on_shards(FlagsAtStarts(compute_vtrace), AT_STARTS, over_time=False)
