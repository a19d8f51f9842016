"""compute_eligibility_traces on tensors that are spread over ranks."""

from __future__ import annotations

import functools

from rl_triton_core.testing.ranks import assert_runs_on_shards
from rl_triton_traces import compute_eligibility_traces

CALLS = (("gradients", "dones"), ("gradients", "dones", "seed_values"))


def test_on_shards() -> None:
    assert_runs_on_shards(functools.partial(compute_eligibility_traces, gamma=0.9, lambda_=0.8), CALLS, over_time=False)
