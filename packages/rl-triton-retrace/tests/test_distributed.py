"""Both functions on tensors that are spread over ranks."""

from __future__ import annotations

from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.ranks import assert_runs_on_shards
from rl_triton_retrace import compute_retrace, compute_retrace_continuous

CALLS = (
    (
        *("action_probs_target", "action_probs_behavior", "q_values", "next_q_values_all", "actions"),
        *("rewards", "terminateds", "truncateds", "gamma"),
    ),
)
AT_STARTS = ((*CALLS[0], "next_start", "next_start_truncated"),)

CONTINUOUS = (
    (
        *("log_pi_target", "log_pi_behavior", "q_values", "next_values", "rewards"),
        *("terminateds", "truncateds", "gamma"),
    ),
)


def test_on_shards() -> None:
    assert_runs_on_shards(compute_retrace, CALLS, over_time=False)
    assert_runs_on_shards(FlagsAtStarts(compute_retrace), AT_STARTS, over_time=False)
    assert_runs_on_shards(compute_retrace_continuous, CONTINUOUS, over_time=False)
