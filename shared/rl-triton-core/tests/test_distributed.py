"""segmented_scan on tensors that are spread over ranks, and what such calls must not be."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rl_triton_core import api, segmented_scan
from rl_triton_core.distributed import time_sharded
from rl_triton_core.engine.dispatch import registered, run
from rl_triton_core.testing.ranks import RANKS, assert_equal_over_ranks, assert_runs_on_shards
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

CALLS = (("inputs", "decays"), ("inputs", "decays", "resets", "initial"))


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@RANKS
def test_split_along_time(ranks: int, device: str, reverse: bool) -> None:
    assert_equal_over_ranks(functools.partial(segmented_scan, reverse=reverse), CALLS, ranks, device)


def test_on_shards() -> None:
    assert_runs_on_shards(segmented_scan, CALLS, over_time=True)


def test_a_process_group_is_needed() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="process group"):
        time_sharded()


@pytest.fixture
def lone_mesh(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1))
    dist.destroy_process_group()


def test_arguments_are_placed_alike(lone_mesh: Any) -> None:
    x = torch.rand(2, 3)
    batch, time, both, partial = ([Shard(0), Replicate()], [Shard(1), Replicate()], [Shard(1)] * 2, [Partial()] * 2)

    def placed(tensor: Tensor, placements: Any) -> Any:
        return DTensor.from_local(tensor, lone_mesh, placements, run_check=False)

    for decays, kind, message in (
        (x, TypeError, "decays: expected a DTensor like inputs, got a plain tensor"),
        (placed(x, time), ValueError, r"decays: expected placements \(Shard\(dim=0\), Replicate\(\)\)"),
    ):
        with pytest.raises(kind, match=message):
            segmented_scan(placed(x, batch), decays)
    with pytest.raises(TypeError, match="inputs: expected a DTensor like decays, got a plain tensor"):
        segmented_scan(x, placed(x, batch))
    with pytest.raises(ValueError, match="inputs: expected a time axis on one axis of the mesh"):
        segmented_scan(placed(x, both), placed(x, both))
    with pytest.raises(ValueError, match="inputs: expected placements"):
        segmented_scan(placed(x, partial), placed(x, partial))
    with pytest.raises(ValueError, match="initial: expected placements"):
        segmented_scan(placed(x, time), placed(x, time), initial=placed(x[:, 0], batch))


def test_a_part_is_written_into_buffers(lone_mesh: Any) -> None:
    x = torch.rand(2, 3, 4)
    expected, buffer = segmented_scan(x, x, time_dim=-1), torch.empty(2, 3, 4)
    with time_sharded():
        assert segmented_scan(x, x, time_dim=-1, out=buffer) is buffer
        torch.testing.assert_close(buffer, expected)
        with torch.no_grad():
            unrecorded = segmented_scan(x.clone().requires_grad_(), x, time_dim=-1)
    assert not unrecorded.requires_grad
    torch.testing.assert_close(unrecorded, expected)


def test_one_compiled_graph_takes_shards(lone_mesh: Any) -> None:
    x = torch.rand(2, 3)

    def step(x: Tensor) -> Tensor:
        return segmented_scan(x * 0.5, x) * 2.0

    shard = DTensor.from_local(x, lone_mesh, [Shard(0), Replicate()])
    compiled: Any = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(shard).full_tensor(), step(x))


def test_other_algorithms_say_that_they_cannot_be_split(lone_mesh: Any) -> None:
    needs_more = registered(dataclasses.replace(api._FORWARD, name="needs_more", ahead=None))
    x = torch.rand(2, 3)
    with time_sharded(), pytest.raises(NotImplementedError, match="needs_more: a sequence that is split along time"):
        run(needs_more, (x, x, None), (None,), 1)
