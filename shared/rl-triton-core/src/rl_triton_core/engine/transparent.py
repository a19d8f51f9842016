"""Transparent steps: what a mask leaves out, on whole tensors.

A step that the mask does not hold is as good as not there: nothing of it is read but its flags, and what follows it is
what follows the step before. A flag there ends the valid step before it, with the continuation of the step that has the
flag; and what the last column continues with passes to the last valid step.

So the valid steps of every row are moved to its end, in their order, with the boundaries that follow each of them; the
algorithm computes on these; and its outputs are moved back. `transparent_tile` says the same to Triton, in place.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm, OptionalTensors
from rl_triton_core.engine.packing import Packing
from rl_triton_core.engine.shift import of_next


class Moved(NamedTuple):
    """The valid steps of every row at its end.

    Attributes:
        fields: those of the algorithm, without the mask.
        row_values: those of the algorithm.
        valid: the mask.
        place: where each valid step has been moved to.
        packing: where the sequences of a row lie now, if it is made of some.
    """

    fields: OptionalTensors
    row_values: OptionalTensors
    valid: Tensor
    place: Tensor
    packing: Packing | None


def move_valid_steps(
    algorithm: Algorithm,
    fields: OptionalTensors,
    row_values: OptionalTensors,
    valid: Tensor,
    dim: int,
    packing: Packing | None,
) -> Moved:
    """Leave out what the mask `valid` leaves out; flags are bools at the steps that end episodes.

    Sequences of a row stay in their order, with those that have no valid step gone.
    """
    given = {field.name: x for field, x in zip(algorithm.fields, fields, strict=False)}
    terminated = cast(Tensor, given["terminateds"])
    truncated = given.get("truncateds")
    flagged = terminated if truncated is None else terminated | truncated
    steps = valid.shape[dim]
    shape = [1] * valid.dim()
    shape[dim] = steps
    own = torch.arange(steps, device=valid.device).view(shape).expand_as(valid)
    if packing is None:
        last_steps, is_last = own.narrow(dim, steps - 1, 1), own == steps - 1
    else:
        last_steps, is_last = packing.open_ends, packing.at_open_ends(dim)
        valid = valid & packing.inside

    # The first step behind each one that is valid, flagged or the last of its sequence.
    first = torch.where(valid | flagged | is_last, own, steps - 1).flip(dim).cummin(dim).values.flip(dim)
    behind = of_next(first, first.select(dim, -1), dim)
    at_end = ~flagged & (is_last | ~(valid | flagged).gather(dim, behind))
    taken_over = ~flagged & ~at_end & ~valid.gather(dim, behind)
    # Whose flags and continuation count for each step.
    source = torch.where(taken_over | (at_end & ~is_last), behind, own)

    place = steps - valid.flip(dim).cumsum(dim).flip(dim)
    # Which step has come to each place; -1 where none has.
    nobody = torch.full_like(torch.cat([own, own.narrow(dim, 0, 1)], dim), -1)
    step = nobody.scatter(dim, torch.where(valid, place, steps), own).narrow(dim, 0, steps)
    empty = step < 0
    step = step.clamp(min=0)
    place = place.clamp(max=steps - 1)
    # The last valid step of every sequence; where it has none, any.
    latest = torch.where(valid, own, 0).cummax(dim).values.gather(dim, last_steps)

    def moved(name: str, x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        index = step
        if name in ("terminateds", "truncateds", "bootstrap_values"):
            index = source.gather(dim, step)
        elif name == "next_values":
            index = torch.where(taken_over, source, own).gather(dim, step)
        there = x.gather(dim, index)
        return there | empty if name == "terminateds" else there.masked_fill(empty, 0)

    def of_sequence(name: str, x: Tensor | None) -> Tensor | None:
        if x is None or name != "last_value":
            return x
        # An episode that was cut off before the last column does not go on there.
        goes_on = source.gather(dim, latest) == last_steps
        return x.masked_fill(~(goes_on if packing is not None else goes_on.squeeze(dim)), 0)

    if packing is not None:
        sequence = is_last.cumsum(dim) - is_last.long()
        is_own = sequence.gather(dim, latest) == sequence.gather(dim, last_steps)
        has_valid = packing.exists & valid.gather(dim, latest) & is_own
        packing = Packing(~empty, place.gather(dim, latest), has_valid)
    return Moved(
        tuple(moved(name, x) for name, x in given.items()),
        tuple(of_sequence(field.name, x) for field, x in zip(algorithm.row_fields, row_values, strict=False)),
        valid,
        place,
        packing,
    )


def moved_back(output: Tensor, moved: Moved, dim: int) -> Tensor:
    """An output at the steps where its valid steps were, 0 elsewhere."""
    return output.gather(dim, moved.place).masked_fill(~moved.valid, 0)
