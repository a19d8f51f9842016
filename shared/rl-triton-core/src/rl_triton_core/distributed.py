"""Sequences that are split along time between the ranks of a process group, one contiguous shard each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rl_triton_core.engine import operators
from rl_triton_core.engine.algorithm import Algorithm, OptionalTensors
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.composite import Problem, emitted, problem_of
from rl_triton_core.engine.layout import empty_output
from rl_triton_core.engine.precision import widest_dtype
from rl_triton_core.engine.scan_operator import scan


def time_sharded(group: dist.ProcessGroup | None = None) -> TorchFunctionMode:
    """Take the sequences of every call inside a block for shards of longer ones, cut along time.

    Rank r of the group holds the steps that follow those of rank r - 1; shards may differ in length, and be empty.
    Every rank makes the same calls in the same order, on the same rows, and gets its own steps of what one process
    would compute from the whole. A call costs one all-gather of ten numbers a row, and its gradient one all-reduce, in
    which every rank takes part: each has to run a backward pass if one does.

    What belongs to the end of the sequence (`last_value`, the last column of `bootstrap_values`, `initial`) is read on
    the rank that holds that end.

    Serves segmented_scan, compute_gae, compute_lambda_returns and compute_discounted_returns; another function of
    rl-triton raises NotImplementedError inside the block.

    Args:
        group: the process group; None for the default one.

    Returns:
        What a `with` statement takes.

    Raises:
        ValueError: no process group has been initialised.

    Example:
        >>> with time_sharded():  # doctest: +SKIP
        ...     advantages = compute_gae(rewards, values, terminateds, last_value=last_value)
    """
    dist.get_rank(group)
    return _TimeSharded(group)


class _TimeSharded(TorchFunctionMode):
    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.group = group

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        call = operators.call_of(function, arguments)
        if call is None:
            return function(*arguments, **(keywords or {}))
        algorithm, (fields, row_fields, dim) = call
        return operators.as_returned(_run(algorithm, fields, row_fields, dim, self.group))


class _Shard(NamedTuple):
    """What other ranks need to know of a shard, one number a row each.

    Its steps but the one at its edge (the open end, were there no other shard) map the state after the edge step to
    the state that leaves the shard.

    Attributes:
        there: 1 if the shard has a step.
        weight, offset, is_cut: that map, and whether a cut takes the weight away.
        u, decay, edge_is_cut: the step at the edge inside a sequence, before what it takes of the next shard ...
        share: ... and how much it takes of `first` of the next shard.
        open_u: u of that step where the sequence ends there.
        first: what the neighbouring shard takes a share of.
    """

    there: Tensor
    weight: Tensor
    offset: Tensor
    is_cut: Tensor
    u: Tensor
    decay: Tensor
    edge_is_cut: Tensor
    share: Tensor
    open_u: Tensor
    first: Tensor


class _Incoming(NamedTuple):
    """What enters a shard: the state and the first value of the next shard that has steps, if there is one."""

    state: Tensor
    first: Tensor
    is_open: Tensor


def _run(
    algorithm: Algorithm,
    fields: Sequence[Tensor | float | None],
    row_fields: Sequence[Tensor | None],
    dim: int,
    group: dist.ProcessGroup | None,
) -> tuple[Tensor, ...]:
    if algorithm.ahead is None:
        raise NotImplementedError(
            f"{algorithm.name}: a sequence that is split along time is not supported, because its outputs need more of "
            "the next step than its state; split the batch instead"
        )
    first = fields[0]
    assert isinstance(first, Tensor)
    problem = problem_of(algorithm, fields, row_fields)
    steps, rank = first.shape[dim], dist.get_rank(group)
    if steps > 0 and first.numel() == 0:
        return (empty_output(first, problem.dtype),)
    if steps > 0:
        u, decay, cut = algorithm.coefficients(*problem[:3], dim)
        summary = _summary(algorithm, problem, u, decay, cut, dim)
    else:
        summary = _summary_of_nothing(problem, dim)
    gathered: Tensor = _AllGather.apply(torch.stack(summary), group)  # type: ignore[no-untyped-call]
    shards = [_Shard(*parts.unbind()) for parts in gathered.unbind()]
    # Zeros, but part of the graph: the backward pass of the all-gather is one of all ranks.
    nothing = shards[rank].there * 0.0
    incoming = _Incoming(nothing, nothing, torch.ones_like(nothing, dtype=torch.bool))
    for other in reversed(shards[rank + 1 :]) if algorithm.reverse else shards[:rank]:
        incoming = _passed_on(other, incoming)
    if steps == 0:
        return (empty_output(first, problem.dtype).add_(incoming.state.sum()),)
    with_edge = u.clone()
    _edge(with_edge, algorithm, dim).copy_(_edge_state(shards[rank], incoming))
    states = _scan(with_edge, decay, cut, dim=dim, reverse=algorithm.reverse)
    return emitted(algorithm, problem, states, dim, first)


_scan = partial(differentiable_scan, forward=scan)


def _edge(x: Tensor, algorithm: Algorithm, dim: int) -> Tensor:
    """The steps at the end that states come in from."""
    return x.select(dim, -1 if algorithm.reverse else 0)


def _summary(
    algorithm: Algorithm, problem: Problem, u: Tensor, decay: Tensor | float, cut: Tensor | None, dim: int
) -> _Shard:
    inner = partial(torch.narrow, dim=dim, start=0 if algorithm.reverse else 1, length=u.shape[dim] - 1)
    weight, offset, is_cut = _map_of(
        inner(u),
        inner(decay) if isinstance(decay, Tensor) else decay,
        None if cut is None else inner(cut),
        algorithm,
        dim,
    )
    edge_u, edge_decay, edge_cut, share = _edge_inside(algorithm, problem, dim)
    first = torch.zeros_like(offset)
    for field, tensor in zip(algorithm.fields, problem.fields, strict=True):
        if field.name in (algorithm.ahead or ()) and tensor is not None:
            first = tensor.select(dim, 0 if algorithm.reverse else -1)
    parts = (
        *(torch.ones_like(offset), weight, offset, is_cut, edge_u, edge_decay, edge_cut, share),
        *(_edge(u, algorithm, dim), first),
    )
    return _Shard(*(part.to(widest_dtype(u)) for part in parts))


def _summary_of_nothing(problem: Problem, dim: int) -> _Shard:
    """That of a shard without steps: zeros that are part of the graph wherever other shards' are."""
    leader = problem.fields[0]
    assert leader is not None
    zeros = sum((x.sum(dim) for x in problem.fields if x is not None and x.requires_grad), leader.sum(dim))
    return _Shard(*[zeros.to(widest_dtype(zeros))] * len(_Shard._fields))


def _map_of(
    u: Tensor, decay: Tensor | float, cut: Tensor | None, algorithm: Algorithm, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What steps make of the state that enters them: weight, offset, and whether a cut hides it."""
    steps = u.shape[dim]
    if steps == 0:
        none = u.sum(dim)
        return torch.ones_like(none), none, torch.zeros_like(none)
    far = partial(torch.select, dim=dim, index=0 if algorithm.reverse else -1)
    offset = far(_scan(u, decay, cut, dim=dim, reverse=algorithm.reverse))
    is_cut = torch.zeros_like(offset, dtype=torch.bool) if cut is None else cut.any(dim)
    if isinstance(decay, Tensor):
        # The state 1 as it enters: behind the first step, that step's decay.
        entering = torch.zeros_like(u, dtype=decay.dtype)
        at_edge = _edge(decay, algorithm, dim)
        _edge(entering, algorithm, dim).copy_(
            at_edge if cut is None else torch.where(_edge(cut, algorithm, dim), 0.0, at_edge)
        )
        weight = far(_scan(entering, decay, cut, dim=dim, reverse=algorithm.reverse))
    else:
        weight = torch.full_like(offset, decay**steps)
    return weight, offset, is_cut.to(offset.dtype)


def _edge_inside(algorithm: Algorithm, problem: Problem, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The step at the edge as one inside a sequence: u, decay, cut, and u's share of what lies ahead.

    Its coefficients beside a step of zeros; and, with nothing but a 1 ahead, beside that.
    """

    def pair(edge: Tensor | None, beside: float) -> Tensor | None:
        if edge is None:
            return None
        steps = (edge, torch.full_like(edge, beside))
        return torch.stack(steps if algorithm.reverse else steps[::-1], dim)

    edges = [x if x is None else _edge(x, algorithm, dim) for x in problem.fields]
    row_values: OptionalTensors = tuple(None for _ in problem.row_values)
    beside_zeros = tuple(pair(x, 0.0) for x in edges)
    u, decay, cut = algorithm.coefficients(beside_zeros, row_values, problem.numbers, dim)
    share = torch.zeros_like(u)
    if algorithm.ahead:
        alone = [
            torch.zeros_like(x) if x is not None and field.is_real and not field.numbers else x
            for field, x in zip(algorithm.fields, edges, strict=True)
        ]
        beside_one = tuple(
            pair(x, float(field.name in algorithm.ahead)) for field, x in zip(algorithm.fields, alone, strict=True)
        )
        share = algorithm.coefficients(beside_one, row_values, problem.numbers, dim)[0]
    edge_u = _edge_of_pair(u, algorithm, dim)
    edge_decay = _edge_of_pair(decay, algorithm, dim) if isinstance(decay, Tensor) else torch.full_like(edge_u, decay)
    edge_cut = torch.zeros_like(edge_u) if cut is None else _edge_of_pair(cut, algorithm, dim).to(edge_u.dtype)
    return edge_u, edge_decay, edge_cut, _edge_of_pair(share, algorithm, dim)


def _edge_of_pair(x: Tensor, algorithm: Algorithm, dim: int) -> Tensor:
    return x.select(dim, 0 if algorithm.reverse else 1)


def _edge_state(shard: _Shard, incoming: _Incoming) -> Tensor:
    """The state after a shard's step at the edge. Nothing is read beyond a cut or the end of the sequence."""
    beyond = incoming.is_open | (shard.edge_is_cut != 0)
    ahead, state = (torch.where(beyond, 0.0, x) for x in (incoming.first, incoming.state))
    share, decay = (torch.where(beyond, 0.0, x) for x in (shard.share, shard.decay))
    return torch.where(incoming.is_open, shard.open_u, shard.u) + share * ahead + decay * state


def _passed_on(shard: _Shard, incoming: _Incoming) -> _Incoming:
    """What a shard hands to the one before it, having got `incoming`."""
    is_cut, there = shard.is_cut != 0, shard.there != 0
    weight, state = (torch.where(is_cut, 0.0, x) for x in (shard.weight, _edge_state(shard, incoming)))
    return _Incoming(
        torch.where(there, shard.offset + weight * state, incoming.state),
        torch.where(there, shard.first, incoming.first),
        incoming.is_open & ~there,
    )


class _AllGather(torch.autograd.Function):
    """[numbers, rows ...] of every rank, stacked; the gradient is the sum over ranks of what each has of its own."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        ranks = dist.get_world_size(group)
        gathered = mine.new_empty((ranks, *mine.shape))
        # Along the first axis, as every backend takes it.
        dist.all_gather_into_tensor(gathered.view(ranks * mine.shape[0], -1), mine.reshape(mine.shape[0], -1), group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[dist.get_rank(ctx.group)], None
