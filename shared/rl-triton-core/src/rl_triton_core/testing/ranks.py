"""Whether a sequence that is split along time gives what it does whole, on several processes of one machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from rl_triton_core.distributed import time_sharded
from rl_triton_core.testing.calls import as_tuple
from rl_triton_core.testing.integration import FLAGS, ROW_VALUES, drawn_by_name

STEPS = 13
LONG = 1000
# By the number of ranks: uneven, of one step, and empty at either end and in between.
SPLITS: dict[int, list[tuple[int, ...]]] = {
    2: [(5, 8), (0, 13), (13, 0), (1, 12)],
    3: [(4, 5, 4), (0, 12, 1), (6, 0, 7), (12, 1, 0)],
    4: [(3, 4, 3, 3), (1, 0, 0, 12), (0, 13, 0, 0)],
}


def assert_equal_over_ranks(function: Callable[..., Tensor], calls: Sequence[Sequence[str]], ranks: int) -> None:
    """Fail unless every rank has its own steps of outputs and gradients, for every split and call.

    `function` takes its tensors by the names of a call; it is handed to other processes, so it has to be a function of
    a module (or a partial of one).
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, (ranks, Path(folder) / "rendezvous", function, calls), nprocs=ranks)  # type: ignore[no-untyped-call]


def assert_runs_on_shards(function: Callable[..., Any], calls: Sequence[Sequence[str]], *, over_time: bool) -> None:
    """Fail unless DTensors give DTensors placed alike, with outputs and gradients of the whole call.

    Batch shards must not communicate. `over_time` adds shards of the time axis.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rendezvous"
        spawn(_work_on_shards, (2, file, function, calls, over_time), nprocs=2)  # type: ignore[no-untyped-call]


def _work_on_shards(
    rank: int, ranks: int, file: Path, function: Callable[..., Any], calls: Sequence[Sequence[str]], over_time: bool
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        for names in calls:
            for axis in (None, 0, 1) if over_time else (None, 0):
                given = drawn_by_name(names, STEPS)
                whole = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in given.items()}
                sharded: dict[str, Any] = {}
                for name, x in given.items():
                    replicated = axis == 1 and name in ROW_VALUES
                    placement = Replicate() if replicated or axis is None else Shard(axis)
                    sharded[name] = distribute_tensor(x, mesh, [placement]).requires_grad_(x.is_floating_point())
                expected = as_tuple(function(**whole))
                communication: Any = CommDebugMode()  # type: ignore[no-untyped-call]
                with communication:
                    outputs: tuple[Any, ...] = as_tuple(function(**sharded))
                if axis != 1:
                    assert communication.get_total_counts() == 0
                for output, reference in zip(outputs, expected, strict=True):
                    assert output.placements == sharded[names[0]].placements
                    assert output.stride() == reference.stride()
                    torch.testing.assert_close(output.full_tensor(), reference)
                    assert output.requires_grad == reference.requires_grad
                if expected[0].requires_grad:
                    for results in (outputs, expected):
                        torch.autograd.backward([y.square().sum() for y in results])
                    for name, x in sharded.items():
                        if x.grad is not None:
                            torch.testing.assert_close(x.grad.full_tensor(), whole[name].grad)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _work(rank: int, ranks: int, file: Path, function: Callable[..., Tensor], calls: Sequence[Sequence[str]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    try:
        for split in SPLITS[ranks]:
            first: int = sum(split[:rank])
            mine = slice(first, first + split[rank])
            for names in calls:
                given = drawn_by_name(names, STEPS)
                _check_outputs_and_gradients(function, given, mine)
                for name in names:
                    if name not in FLAGS:
                        _check_nan_stays(function, given, name, mine)
                _check_time_first(function, given, mine)
        lengths = [300, *[700 // (ranks - 1)] * (ranks - 2)]
        first = sum(lengths[:rank])
        _check_float32(function, calls[-1], slice(first, first + lengths[rank] if rank < ranks - 1 else LONG))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _part(name: str, x: Tensor, mine: slice) -> Tensor:
    return x.detach().clone() if name in ROW_VALUES else x.detach()[:, mine].clone()


def _check_outputs_and_gradients(function: Callable[..., Tensor], given: dict[str, Tensor], mine: slice) -> None:
    whole = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in given.items()}
    part = {name: _part(name, x, mine).requires_grad_(x.is_floating_point()) for name, x in given.items()}
    weights = torch.arange(1.0, STEPS + 1, dtype=torch.float64).sin()
    expected = function(**whole)
    torch.autograd.backward((expected * weights).sum())
    with time_sharded():
        output = function(**part)
    torch.testing.assert_close(output, expected[:, mine])
    assert output.stride() == function(**part).stride()
    torch.autograd.backward((output * weights[mine]).sum())
    for name, x in part.items():
        reference = whole[name].grad
        if reference is None:
            continue
        gradient = torch.zeros_like(x) if x.grad is None else x.grad
        if name in ROW_VALUES:
            # Read on one rank only, whichever holds the end.
            dist.all_reduce(gradient)
            torch.testing.assert_close(gradient, reference)
        else:
            torch.testing.assert_close(gradient, reference[:, mine])


def _check_nan_stays(function: Callable[..., Tensor], given: dict[str, Tensor], name: str, mine: slice) -> None:
    """NaN in one row reaches the same steps as in one process, and none behind a boundary."""
    poisoned = given | {name: given[name].clone()}
    poisoned[name][0, ...].view(-1)[-1 if name in ROW_VALUES else STEPS // 2] = float("nan")
    expected = function(**poisoned)
    with time_sharded():
        output = function(**{key: _part(key, x, mine) for key, x in poisoned.items()})
    torch.testing.assert_close(output, expected[:, mine], equal_nan=True)


def _check_time_first(function: Callable[..., Tensor], given: dict[str, Tensor], mine: slice) -> None:
    expected = function(**given)
    part: dict[str, Any] = {name: _part(name, x, mine) for name, x in given.items()}
    with time_sharded():
        output = function(**{name: x if name in ROW_VALUES else x.t() for name, x in part.items()}, time_dim=0)
    torch.testing.assert_close(output.t(), expected[:, mine])


def _check_float32(function: Callable[..., Tensor], names: Sequence[str], mine: slice) -> None:
    """Long enough for errors to compound, close to what float64 says."""
    given = drawn_by_name(names, LONG)
    expected = function(**given)
    with time_sharded():
        output = function(**{name: _part(name, x if name in FLAGS else x.float(), mine) for name, x in given.items()})
    torch.testing.assert_close(output, expected[:, mine], check_dtype=False, rtol=2e-6, atol=2e-6)
