"""Calls on DTensors: each rank computes on its own shards, and the outputs are placed as the first argument is.

Shards of a batch axis need nothing of each other. Shards of the time axis are those of a sequence that is split between
ranks. Nothing is redistributed: arguments that are placed otherwise than the first one are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm, Field
from rl_triton_core.engine.layout import empty_output

LocalRun = Callable[[Algorithm, Sequence[Any], Sequence[Any], int], tuple[Tensor, ...]]


def is_sharded(value: Any) -> bool:
    """Whether an argument is a DTensor, which importing it would take long to find out."""
    return isinstance(value, Tensor) and hasattr(value, "placements")


def run_on_shards(
    algorithm: Algorithm, fields: Sequence[Any], row_fields: Sequence[Any], dim: int, run: LocalRun
) -> tuple[Tensor, ...]:
    """A checked call with DTensors among its arguments; `run` computes on local tensors.

    Raises:
        TypeError: plain tensors among DTensors.
        ValueError: placements or a mesh that are not those of the first argument, a partial sum, or a time axis that
            is split over two axes of the mesh.
    """
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    leader, name = fields[0], algorithm.fields[0].name
    given = algorithm.described((*fields, *row_fields))
    for field, value in given:
        if isinstance(value, Tensor) and not is_sharded(value):
            other = next(field.name for field, value in given if is_sharded(value))
            raise TypeError(f"{field.name}: expected a DTensor like {other}, got a plain tensor")
    axes = [placement.dim % leader.dim() if isinstance(placement, Shard) else None for placement in leader.placements]
    over_time = [mesh_axis for mesh_axis, axis in enumerate(axes) if axis == dim]
    if len(over_time) > 1:
        raise ValueError(f"{name}: expected a time axis on one axis of the mesh, got {leader.placements}")
    # A row has no time axis, so that axes behind it move up.
    row_axes = [None if axis is None or axis == dim else axis - (axis > dim) for axis in axes]
    placements, row_placements = (
        tuple(Replicate() if axis is None else Shard(axis) for axis in of) for of in (axes, row_axes)
    )
    for place, (field, value) in enumerate(given):
        if value is not None and not isinstance(value, float):
            _check_placements(field, value, leader, name, placements if place < len(fields) else row_placements)

    def local(value: Any, gradient: Sequence[Any] | None = None) -> Any:
        return value.to_local(grad_placements=gradient) if is_sharded(value) else value

    # Of ranks that share a sequence, one reads what belongs to its end: the gradient is what they sum up to.
    row_gradient = [
        Partial() if mesh_axis in over_time else placement for mesh_axis, placement in enumerate(row_placements)
    ]
    context: AbstractContextManager[Any] = nullcontext()
    if over_time:
        from rl_triton_core.distributed import time_sharded

        context = time_sharded(leader.device_mesh.get_group(over_time[0]))
    with context:
        local_rows = [local(value, row_gradient) for value in row_fields]
        outputs = run(algorithm, [local(value) for value in fields], local_rows, dim)
    like = torch.empty_strided(leader.shape, leader.stride(), device="meta")
    return tuple(
        DTensor.from_local(
            output,
            leader.device_mesh,
            leader.placements,
            run_check=False,
            shape=leader.shape,
            stride=empty_output(like, output.dtype).stride(),
        )
        for output in outputs
    )


def check_not_time_sharded(name: str) -> None:
    """Check that a function which is no operator is not called inside `time_sharded`, where it would not be seen.

    Raises:
        NotImplementedError: it is.
    """
    if torch._C._len_torch_function_stack() > 0:
        # Imported only where some mode is active: it takes long.
        from rl_triton_core.distributed import is_time_sharded

        if is_time_sharded():
            raise NotImplementedError(
                f"{name}: a sequence that is split along time is not supported, because a step needs more than the "
                "next one; split the batch instead"
            )


def _check_placements(field: Field, value: Any, leader: Any, name: str, expected: tuple[Any, ...]) -> None:
    from torch.distributed.tensor import Shard

    found = tuple(Shard(p.dim % value.dim()) if isinstance(p, Shard) else p for p in value.placements)
    if value.device_mesh != leader.device_mesh:
        raise ValueError(f"{field.name}: expected {leader.device_mesh} like {name}, got {value.device_mesh}")
    if found != expected:
        raise ValueError(
            f"{field.name}: expected placements {expected}, which go with {name}'s, got {value.placements}"
        )
