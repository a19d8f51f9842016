"""Whether a sequence that is split along time gives what it does whole, on several processes of one machine."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
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
# How many processes share a sequence, on which devices: the parameters (ranks, device) of a test.
RANKS = pytest.mark.parametrize(
    ("ranks", "device"), [(2, "cpu"), (3, "cpu"), (4, "cpu"), pytest.param(2, "cuda", marks=pytest.mark.gpu)]
)


def assert_equal_over_ranks(
    function: Callable[..., Tensor], calls: Sequence[Sequence[str]], ranks: int, device: str
) -> None:
    """Fail unless every rank has its own steps of outputs and gradients, for every split and call.

    `function` takes its tensors by the names of a call; it is handed to other processes, so it has to be a function of
    a module (or a partial of one). On "cuda" each rank has a GPU of its own, with NCCL between them, if there are as
    many; else they share what there is, over gloo.
    """
    on_ranks(ranks, device, _check_splits, function, calls, device)


def assert_runs_on_shards(function: Callable[..., Any], calls: Sequence[Sequence[str]], *, over_time: bool) -> None:
    """Fail unless DTensors give DTensors placed alike, with outputs and gradients of the whole call.

    Batch shards must not communicate. `over_time` adds shards of the time axis.
    """
    on_ranks(2, "cpu", _check_shards, function, calls, (None, 0, 1) if over_time else (None, 0))


def on_ranks(ranks: int, device: str, check: Callable[..., None], *arguments: Any) -> None:
    """Run a check, a function of a module, in so many processes of one group."""
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Path(folder) / "rendezvous"
        spawn(_process, (ranks, rendezvous, device, check, *arguments), nprocs=ranks)  # type: ignore[no-untyped-call]


def _process(rank: int, ranks: int, rendezvous: Path, device: str, check: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
        backend = "nccl" if torch.cuda.device_count() >= ranks else "gloo"
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    check(*arguments)
    dist.barrier()
    dist.destroy_process_group()
    # An ordinary exit waits for threads of the groups in an order that now and then ends in an abort.
    os._exit(0)


def _check_splits(function: Callable[..., Tensor], calls: Sequence[Sequence[str]], device: str) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for split in SPLITS[ranks]:
        first: int = sum(split[:rank])
        mine = slice(first, first + split[rank])
        for names in calls:
            given = drawn_by_name(names, STEPS, device=device)
            _check_outputs_and_gradients(function, given, mine)
            _check_second_derivatives(function, given, mine)
            for name in names:
                if name not in FLAGS:
                    _check_nan_stays(function, given, name, mine)
            _check_time_first(function, given, mine)
    lengths = [300, *[700 // (ranks - 1)] * (ranks - 2)]
    first = sum(lengths[:rank])
    _check_float32(function, calls[-1], device, slice(first, first + lengths[rank] if rank < ranks - 1 else LONG))


def _check_shards(function: Callable[..., Any], calls: Sequence[Sequence[str]], axes: Sequence[int | None]) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for names, axis in itertools.product(calls, axes):
        _check_shards_of(function, drawn_by_name(names, STEPS), axis, mesh)


def _check_shards_of(function: Callable[..., Any], given: dict[str, Tensor], axis: int | None, mesh: Any) -> None:
    """Every tensor is split along an axis (None: copied), if it has that axis."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    whole = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in given.items()}
    sharded: dict[str, Any] = {}
    for name, x in given.items():
        copied = axis is None or (axis == 1 and name in ROW_VALUES)
        placement = Replicate() if copied or axis is None else Shard(axis)
        sharded[name] = distribute_tensor(x, mesh, [placement]).requires_grad_(x.is_floating_point())
    expected = as_tuple(function(**whole))
    communication: Any = CommDebugMode()  # type: ignore[no-untyped-call]
    with communication:
        outputs: tuple[Any, ...] = as_tuple(function(**sharded))
    assert axis == 1 or communication.get_total_counts() == 0
    for output, reference in zip(outputs, expected, strict=True):
        assert output.placements == next(iter(sharded.values())).placements
        assert output.stride() == reference.stride()
        torch.testing.assert_close(output.full_tensor(), reference)
        assert output.requires_grad == reference.requires_grad
    if expected[0].requires_grad:
        for results in (outputs, expected):
            torch.autograd.backward([y.square().sum() for y in results])
        for name, x in sharded.items():
            if x.grad is not None:
                torch.testing.assert_close(x.grad.full_tensor(), whole[name].grad)


def _part(name: str, x: Tensor, mine: slice) -> Tensor:
    return x.detach().clone() if name in ROW_VALUES else x.detach()[:, mine].clone()


def _check_outputs_and_gradients(function: Callable[..., Tensor], given: dict[str, Tensor], mine: slice) -> None:
    whole = {name: x.clone().requires_grad_(x.is_floating_point()) for name, x in given.items()}
    part = {name: _part(name, x, mine).requires_grad_(x.is_floating_point()) for name, x in given.items()}
    expected = function(**whole)
    weights = torch.arange(1.0, STEPS + 1, dtype=torch.float64, device=expected.device).sin()
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


def _check_second_derivatives(function: Callable[..., Tensor], given: dict[str, Tensor], mine: slice) -> None:
    """Gradients of the sum of squares of the gradients, of the arguments with a value per step."""
    found = []
    for part in (slice(None), mine):
        leaves = {name: _part(name, x, part).requires_grad_(x.is_floating_point()) for name, x in given.items()}
        wanted = [x for name, x in leaves.items() if x.requires_grad and name not in ROW_VALUES]
        with time_sharded() if part is mine else nullcontext():
            output = function(**leaves)
        first = torch.autograd.grad(output.pow(3).sum(), wanted, create_graph=True)
        found.append(torch.autograd.grad(sum((x.square().sum() for x in first), output.sum()), wanted))
    for whole, own in zip(*found, strict=True):
        torch.testing.assert_close(own, whole[:, mine])


def _check_nan_stays(function: Callable[..., Tensor], given: dict[str, Tensor], name: str, mine: slice) -> None:
    """NaN and infinity in one row reach the same steps as in one process, and none behind a boundary."""
    steps = [()] if name in ROW_VALUES else [(step,) for step in (4, 5, STEPS // 2, STEPS - 1)]
    # A product with an infinite decay has no sign before its other factor is known.
    poisons = (math.nan,) if name in ("decays", "gamma", "lambda_") else (math.nan, math.inf)
    for step, poison in itertools.product(steps, poisons):
        poisoned = given | {name: given[name].clone()}
        place = (0, *step)
        poisoned[name][place] = poison
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


def _check_float32(function: Callable[..., Tensor], names: Sequence[str], device: str, mine: slice) -> None:
    """Long enough for errors to compound, close to what float64 says."""
    given = drawn_by_name(names, LONG, device=device)
    expected = function(**given)
    with time_sharded():
        output = function(**{name: _part(name, x if name in FLAGS else x.float(), mine) for name, x in given.items()})
    torch.testing.assert_close(output, expected[:, mine], check_dtype=False, rtol=2e-6, atol=2e-6)
