"""Sequences that are split along time between the ranks of a process group, one contiguous shard each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from rl_triton_core.engine import operators
from rl_triton_core.engine.algorithm import Algorithm, Coefficients, OptionalTensors
from rl_triton_core.engine.autograd import differentiable_scan
from rl_triton_core.engine.composite import Problem, emitted, problem_of
from rl_triton_core.engine.layout import empty_output
from rl_triton_core.engine.precision import widest_dtype
from rl_triton_core.engine.scan_operator import scan


def time_sharded(group: dist.ProcessGroup | None = None) -> TorchFunctionMode:
    """Take the sequences of every call inside a block for shards of longer ones, cut along time.

    Rank r of the group holds the steps that follow those of rank r - 1; shards may differ in length, and be empty.
    Every rank makes the same calls in the same order, on the same rows, and gets its own steps of what one process
    would compute from the whole. A call costs one all-gather of eleven numbers a row, and its gradient one all-reduce,
    in which every rank takes part: each has to run a backward pass if one does.

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


def is_time_sharded() -> bool:
    """Whether this is inside `time_sharded`."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(isinstance(mode, _TimeSharded) for mode in modes)


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
        reads, share: ... whether it reads `first` of the next shard, and how much it takes of it.
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
    reads: Tensor
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
    if algorithm.takes_mask and fields[-1] is not None:
        raise NotImplementedError(
            f"{algorithm.name}: mask: not supported for a sequence that is split along time; split the batch instead"
        )
    if algorithm.recursions > 1:
        raise NotImplementedError(
            f"{algorithm.name}: two recursions in one pass are not supported for a sequence that is split along time; "
            "make a call for each instead"
        )
    if algorithm.packed:
        raise NotImplementedError(
            f"{algorithm.name}: packed sequences are not supported where a sequence is split along time; give every "
            "rank whole sequences instead"
        )
    first = fields[0]
    assert isinstance(first, Tensor)
    steps, rank = first.shape[dim], dist.get_rank(group)
    if 0 in (*first.shape[:dim], *first.shape[dim + 1 :]):
        # No rows, on any rank.
        return tuple(
            empty_output(first, algorithm.output_dtype((*fields, *row_fields))) for _ in range(algorithm.outputs)
        )
    if algorithm.start_flags:
        row_fields = _with_flags_behind(algorithm, fields, row_fields, dim, group)
    problem = problem_of(algorithm, fields, row_fields, dim)
    if steps > 0:
        u, decay, cut = _one_recursion(algorithm.coefficients(*problem[:3], dim))
        summary = _summary(algorithm, problem, u, decay, cut, dim)
    else:
        summary = _summary_of_nothing(problem, dim)
    gathered = all_gather(torch.stack(summary), group)
    shards = [_Shard(*parts.unbind()) for parts in gathered.unbind()]
    # Zeros, but part of the graph: the backward pass of the all-gather is one of all ranks.
    nothing = shards[rank].there * 0.0
    incoming = _Incoming(nothing, nothing, torch.ones_like(nothing, dtype=torch.bool))
    for other in reversed(shards[rank + 1 :]) if algorithm.reverse else shards[:rank]:
        incoming = _passed_on(other, incoming)
    if steps == 0:
        return tuple(empty_output(first, problem.dtype).add_(incoming.state.sum()) for _ in range(algorithm.outputs))
    with_edge = u.clone()
    _edge(with_edge, algorithm, dim).copy_(_edge_state(shards[rank], incoming))
    states = _scan(with_edge, decay, cut, dim=dim, reverse=algorithm.reverse)
    return emitted(algorithm, problem, states, dim, first)


def _one_recursion(coefficients: Coefficients) -> tuple[Tensor, Tensor | float, Tensor | None]:
    u, decay, cut = coefficients
    assert not isinstance(decay, tuple)
    return u, decay, cut


def _with_flags_behind(
    algorithm: Algorithm,
    fields: Sequence[Tensor | float | None],
    row_fields: Sequence[Tensor | None],
    dim: int,
    group: dist.ProcessGroup | None,
) -> list[Any]:
    """The row fields with the flags of the step behind a shard: the first ones of the next shard that has steps.

    Behind the last of those shards are its own. A call with such flags costs one more all-gather.
    """
    arguments = {field.name: value for field, value in algorithm.described((*fields, *row_fields))}
    moved = [(arguments[name], behind) for name, behind in algorithm.start_flags if arguments[name] is not None]
    first = [
        x.select(dim, 0) != 0 if x.shape[dim] else x.new_zeros(x.shape[:dim] + x.shape[dim + 1 :]) != 0
        for x, _ in moved
    ]
    there = torch.full_like(first[0], moved[0][0].shape[dim] > 0)
    gathered = all_gather(torch.stack([there, *first]).to(torch.uint8), group)
    for shard in reversed(gathered[dist.get_rank(group) + 1 :].unbind()):
        for flags, (_, behind) in zip(shard[1:], moved, strict=True):
            after = arguments[behind]
            arguments[behind] = torch.where(shard[0] != 0, flags, 0 if after is None else after != 0)
    return [arguments[field.name] for field in algorithm.row_fields]


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
    ahead = algorithm.ahead or ()
    edge = _edge_inside(algorithm, ahead, problem, dim)
    first = torch.zeros_like(offset)
    for field, tensor in zip(algorithm.step_fields, problem.fields, strict=True):
        if field.name in ahead and tensor is not None:
            first = tensor.select(dim, 0 if algorithm.reverse else -1)
    parts = (torch.ones_like(offset), weight, offset, is_cut, *edge, _edge(u, algorithm, dim), first)
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
    return weight, offset, is_cut


def _edge_inside(algorithm: Algorithm, ahead: Sequence[str], problem: Problem, dim: int) -> tuple[Tensor, ...]:
    """The step at the edge as one inside a sequence: u, decay, cut; whether u reads what lies ahead; its share of that.

    Its coefficients beside a step of zeros; and, with nothing in it but discounts and flags, beside NaN and beside 1.
    """
    edges = [x if x is None else _edge(x, algorithm, dim) for x in problem.fields]
    nothing = [
        torch.zeros_like(x) if x is not None and field.is_real and not field.numbers else x
        for field, x in zip(algorithm.step_fields, edges, strict=True)
    ]

    def beside(steps: Sequence[Tensor | None], what_is_ahead: float) -> list[Any]:
        pairs: list[Tensor | None] = []
        for field, x in zip(algorithm.step_fields, steps, strict=True):
            if x is None:
                pairs.append(None)
                continue
            neighbour = torch.full_like(x, what_is_ahead if field.name in ahead else 0.0)
            pairs.append(torch.stack((x, neighbour) if algorithm.reverse else (neighbour, x), dim))
        row_values: OptionalTensors = tuple(None for _ in problem.row_values)
        coefficients = algorithm.coefficients(tuple(pairs), row_values, problem.numbers, dim)
        return [x.select(dim, 0 if algorithm.reverse else 1) if isinstance(x, Tensor) else x for x in coefficients]

    u, decay, cut = beside(edges, 0.0)
    reads = share = torch.zeros_like(u)
    if ahead:
        reads, share = beside(nothing, math.nan)[0].isnan(), beside(nothing, 1.0)[0]
    return (
        u,
        decay if isinstance(decay, Tensor) else torch.full_like(u, decay),
        torch.zeros_like(u) if cut is None else cut,
        reads,
        share,
    )


def _edge_state(shard: _Shard, incoming: _Incoming) -> Tensor:
    """The state after a shard's step at the edge. Nothing is read beyond a cut or the end of the sequence."""
    inside = ~incoming.is_open
    reads, continues = inside & (shard.reads != 0), inside & (shard.edge_is_cut == 0)
    share, ahead = (torch.where(reads, x, 0.0) for x in (shard.share, incoming.first))
    decay, state = (torch.where(continues, x, 0.0) for x in (shard.decay, incoming.state))
    return torch.where(inside, shard.u, shard.open_u) + share * ahead + decay * state


def _passed_on(shard: _Shard, incoming: _Incoming) -> _Incoming:
    """What a shard hands to the one before it, having got `incoming`."""
    is_cut, there = shard.is_cut != 0, shard.there != 0
    weight, state = (torch.where(is_cut, 0.0, x) for x in (shard.weight, _edge_state(shard, incoming)))
    return _Incoming(
        torch.where(there, shard.offset + weight * state, incoming.state),
        torch.where(there, shard.first, incoming.first),
        incoming.is_open & ~there,
    )


def all_gather(mine: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """What every rank of a group has, stacked in their order; of one shape and dtype on all. Differentiable."""
    gathered: Tensor = _AllGather.apply(mine, group)  # type: ignore[no-untyped-call]
    return gathered


# The newer name first, where PyTorch has it: the other warns there.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _AllGather(torch.autograd.Function):
    """[numbers, rows ...] of every rank, stacked; the gradient is the sum over ranks of what each has of its own."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        ranks = dist.get_world_size(group)
        gathered = mine.new_empty((ranks, *mine.shape))
        # Along the first axis, as every backend takes it.
        _all_gather(gathered.view(ranks * mine.shape[0], -1), mine.reshape(mine.shape[0], -1), group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _OwnOfSum.apply(gradients[0], ctx.group), None  # type: ignore[no-untyped-call]


class _OwnOfSum(torch.autograd.Function):
    """The sum over ranks of such a stack, of which every rank takes its own part: the all-gather's transpose."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = stacked.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _AllGather.apply(gradients[0], ctx.group), None  # type: ignore[no-untyped-call]
