"""Returns of tensors that are spread over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rl_triton_core.distributed import time_sharded
from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.ranks import RANKS, assert_equal_over_ranks, assert_runs_on_shards
from rl_triton_returns import compute_discounted_returns, compute_n_step_returns

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


N_STEP_CALLS = (
    ("rewards", "values", "terminateds", "last_value"),
    ("rewards", "values", "terminateds", "truncateds", "bootstrap_values", "gamma"),
)


def test_n_step_returns_on_shards() -> None:
    assert_runs_on_shards(partial(compute_n_step_returns, n=3), N_STEP_CALLS, over_time=False)


@pytest.fixture
def lone_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("lone_group")
def test_n_step_returns_say_that_they_cannot_be_split() -> None:
    x = torch.rand(2, 3)
    for function in (compute_n_step_returns, torch.compile(compute_n_step_returns, backend="eager")):
        with time_sharded(), pytest.raises(NotImplementedError, match="compute_n_step_returns: a sequence that is"):
            function(x, x, x)
    assert compute_n_step_returns(x, x, x).shape == (2, 3)
