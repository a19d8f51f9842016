"""compute_episodic_prefix_sum on tensors that are spread over ranks."""

from __future__ import annotations

from rl_triton_core.testing.ranks import assert_runs_on_shards
from rl_triton_prefix import compute_episodic_prefix_sum

CALLS = (("inputs", "dones"), ("inputs", "dones", "seed_values"))


def test_on_shards() -> None:
    assert_runs_on_shards(compute_episodic_prefix_sum, CALLS, over_time=False)
