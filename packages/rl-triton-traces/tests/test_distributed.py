"""compute_eligibility_traces on tensors that are spread over ranks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from rl_triton_core.testing.ranks import assert_runs_on_shards
from rl_triton_traces import compute_eligibility_traces

CALLS = (("gradients", "dones"), ("gradients", "dones", "seed_values"))


OTHER_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("ratios", {}),
    ("seed_values", {"kind": "replacing"}),
    ("seed_values", {"kind": "dutch", "alpha": 0.3}),
]


def test_on_shards() -> None:
    assert_runs_on_shards(functools.partial(compute_eligibility_traces, gamma=0.9, lambda_=0.8), CALLS, over_time=False)


@pytest.mark.parametrize(("name", "options"), OTHER_CALLS, ids=str)
def test_other_traces_on_shards(name: str, options: dict[str, Any]) -> None:
    function = functools.partial(compute_eligibility_traces, gamma=0.9, lambda_=0.8, **options)
    assert_runs_on_shards(function, [("gradients", "dones", name)], over_time=False)
