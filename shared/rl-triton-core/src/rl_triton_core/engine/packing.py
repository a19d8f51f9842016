"""Packed sequences, on whole tensors: rows of any length one after the other along time, where `cu_seqlens` says.

An algorithm computes as if all of them were one row, with a cut at the open end of each. What it makes of the step
there, it computes once more from these steps alone: one to a sequence, each a row by itself, with its row values. What
neither a sequence nor its row holds is hidden before that, so that it gets into no derivative. `sequences_tile` says
the same to Triton, in place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm, Coefficients, Numbers, OptionalTensors, States
from rl_triton_core.engine.environment import warn_caller


class Packing(NamedTuple):
    """Where the sequences of a call lie.

    Attributes:
        inside: whether a step belongs to a sequence; the shape of the fields.
        open_ends: the step at the open end of every sequence; their shape with sequences in place of steps.
        exists: whether the sequence has such a step; the same shape.
    """

    inside: Tensor
    open_ends: Tensor
    exists: Tensor

    def at_open_ends(self, dim: int) -> Tensor:
        """Whether a step is the one at the open end of its sequence."""
        none = torch.zeros_like(self.inside)
        return self._put(none, torch.ones_like(self.exists), dim)

    def rows(self, x: Tensor | None, dim: int, *, per_step: bool) -> Tensor | None:
        """The steps at the open ends, or the values of the sequences, as of rows with one step each (at `dim`)."""
        if x is None:
            return None
        exists = self.exists
        if per_step:
            index = self.open_ends
            if x.dim() > index.dim():
                index = index.unsqueeze(-1).expand(*index.shape, x.shape[-1])
            x = x.gather(dim, index)
        if x.dim() > exists.dim():
            exists = exists.unsqueeze(-1)
        x = x.masked_fill(~exists, 0)
        return x.unsqueeze(dim) if per_step else x

    def replaced(self, x: Tensor, of_rows: Tensor, dim: int) -> Tensor:
        """x with what `rows` of one step have become at the open ends."""
        return self._put(x, of_rows.squeeze(dim), dim)

    def _put(self, x: Tensor, at_open_ends: Tensor, dim: int) -> Tensor:
        steps = x.shape[dim]
        # Sequences without a step write behind the last one.
        index = torch.where(self.exists, self.open_ends, steps)
        longer = torch.cat([x, x.narrow(dim, 0, 1)], dim)
        return longer.scatter(dim, index, at_open_ends.to(x.dtype)).narrow(dim, 0, steps)


def packing_of(offsets: Tensor, like: Tensor, dim: int, *, reverse: bool) -> Packing:
    """Where the sequences between `offsets` lie along an axis of `like` that has at least one step."""
    steps, axes = like.shape[dim], like.dim()

    def along_time(x: Tensor) -> Tensor:
        return x.view([-1 if axis == dim else 1 for axis in range(axes)])

    own = along_time(torch.arange(steps, device=like.device))
    inside = (own >= offsets[0]) & (own < offsets[-1])
    first, behind_last = offsets[:-1], offsets[1:]
    open_ends = along_time((behind_last - 1 if reverse else first).clamp(0, steps - 1))
    row_shape = (*like.shape[:dim], len(offsets) - 1, *like.shape[dim + 1 :])
    return Packing(
        inside.expand(like.shape), open_ends.expand(row_shape), along_time(behind_last > first).expand(row_shape)
    )


def warn_of_offsets(offsets: Tensor, steps: int) -> None:
    """Say that offsets are none of sequences within so many steps. It looks into them, so it may wait for the device.

    Warns:
        UserWarning: offsets that decrease, or lie outside the steps.
    """
    if bool((offsets.diff() < 0).any()) or bool(offsets[0] < 0) or bool(offsets[-1] > steps):
        warn_caller(
            f"cu_seqlens: expected offsets that never decrease, from 0 at least to {steps} at most, the number of "
            "steps; what the sequences give is not defined"
        )


def coefficients(
    algorithm: Algorithm,
    fields: OptionalTensors,
    row_values: OptionalTensors,
    numbers: Numbers,
    packing: Packing,
    dim: int,
) -> Coefficients:
    """u, decay and cut of the algorithm's recursion over all sequences."""
    hidden = packing.at_open_ends(dim) | ~packing.inside
    u, decay, cut = algorithm.coefficients(
        _with_endings(algorithm, fields, hidden), (None,) * len(row_values), numbers, dim
    )
    of_rows, _, _ = algorithm.coefficients(*_rows(algorithm, fields, row_values, packing, dim), numbers, dim)
    return packing.replaced(u, of_rows, dim), decay, hidden if cut is None else cut | hidden


def emit(
    algorithm: Algorithm,
    fields: OptionalTensors,
    row_values: OptionalTensors,
    numbers: Numbers,
    packing: Packing,
    states: States,
    dim: int,
) -> tuple[Tensor, ...]:
    """The algorithm's outputs, 0 outside the sequences."""
    hidden = packing.at_open_ends(dim) | ~packing.inside
    outputs = algorithm.emit(_with_endings(algorithm, fields, hidden), (None,) * len(row_values), numbers, states, dim)
    rows = _rows(algorithm, fields, row_values, packing, dim)
    several = states if isinstance(states, tuple) else (states,)
    row_states = tuple(packing.rows(state, dim, per_step=True) for state in several)
    of_rows = algorithm.emit(*rows, numbers, row_states if isinstance(states, tuple) else row_states[0], dim)
    return tuple(
        packing.replaced(output, of_row, dim).masked_fill(~packing.inside, 0)
        for output, of_row in zip(outputs, of_rows, strict=True)
    )


def _with_endings(algorithm: Algorithm, fields: OptionalTensors, hidden: Tensor) -> OptionalTensors:
    """The fields with a termination, where the algorithm knows any, at each step whose next one is not to be read."""
    return tuple(
        x | hidden if field.name == "terminateds" and x is not None else x
        for field, x in zip(algorithm.step_fields, fields, strict=True)
    )


def _rows(
    algorithm: Algorithm, fields: OptionalTensors, row_values: OptionalTensors, packing: Packing, dim: int
) -> tuple[OptionalTensors, OptionalTensors]:
    """Fields and row values of rows with one step each: what stands at the open ends."""
    return (
        tuple(packing.rows(x, dim, per_step=True) for x in fields),
        tuple(packing.rows(x, dim, per_step=False) for x in row_values),
    )
