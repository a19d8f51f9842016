"""What an algorithm hands to the engine: its fields, its maps and what it emits, on a GPU tile and on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

OptionalTensors: TypeAlias = tuple[Tensor | None, ...]
Numbers: TypeAlias = tuple[float, ...]


class Range(NamedTuple):
    """The numbers from `low` to `high`, both included, and what an error calls one."""

    low: float
    high: float
    name: str


FRACTION = Range(0.0, 1.0, "a number in [0, 1]")
CLIP = Range(math.ulp(0.0), math.inf, "a positive number")

# How far the kernel's own loops over fields go.
MOST_FIELDS = 16
MOST_ROW_FIELDS = 4


@dataclass(frozen=True)
class Field:
    """One argument with a value per step (or, among `row_fields`, per row).

    A flag is set where it is non-zero, whatever its dtype; anything else is a real number. A field with a range of
    `numbers` may also be one float for all steps, and is never anything else unless it is `per_step` too; as a float it
    reaches the algorithm among its numbers and is absent from its steps.
    """

    name: str
    flag: bool = False
    required: bool = False
    numbers: Range | None = None
    per_step: bool = True


@dataclass(frozen=True)
class Tile:
    """The algorithm as Triton device functions, which see one step in registers and never a tile's shape.

    `coefficients(step, neighbour, at_open_end, row_values, numbers)` gives the step of the recursion
    y[t] = u[t] + decay[t] * y[neighbour], as (u, decay, cut). `emit(step, neighbour, at_open_end, row_values, state,
    neighbour_state, numbers)` gives the outputs. A step is a tuple in the order of the fields; what a call lacks is
    None in it. The neighbour is the step on the side that y comes from.
    """

    coefficients: Any
    emit: Any


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A recursion along time, and where its two halves (GPU tile, whole tensors) are found.

    Algorithms are told apart by identity: prepared calls are kept under them.
    `load_tile` imports Triton and is called on the first launch only. `coefficients(fields, row_values, numbers, dim)`
    and `emit(fields, row_values, numbers, y, dim)` are the tile's functions on whole tensors. `uniform_decay(numbers)`
    is the value of every decay where one number serves all steps; it is asked only if every field that may be a number
    is one. `derived_numbers(numbers)` are further numbers for the tile, after those of the fields: worked out in
    float64 and rounded once, where the tile could only combine rounded ones. The number of a field that came as a
    tensor is 0, and what is derived from it not to be read. Outputs that are targets are not `differentiable`: no
    gradient is recorded. `shortcut` is the dispatcher's: the way straight to the last call.
    """

    name: str
    reverse: bool
    fields: tuple[Field, ...]
    row_fields: tuple[Field, ...]
    outputs: int
    load_tile: Callable[[], Tile]
    coefficients: Callable[
        [OptionalTensors, OptionalTensors, Numbers, int], tuple[Tensor, Tensor | float, Tensor | None]
    ]
    emit: Callable[[OptionalTensors, OptionalTensors, Numbers, Tensor, int], tuple[Tensor, ...]]
    uniform_decay: Callable[[Numbers], float] | None = None
    derived_numbers: Callable[[Numbers], Numbers] | None = None
    differentiable: bool = True
    shortcut: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for kind, fields, most in (
            ("fields", self.fields, MOST_FIELDS),
            ("row fields", self.row_fields, MOST_ROW_FIELDS),
        ):
            if len(fields) > most:
                raise ValueError(f"{self.name}: expected at most {most} {kind}, got {len(fields)}")
