"""What an algorithm hands to the engine: its fields, its maps and what it emits, on a GPU tile and on whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rl_triton_core.engine.precision import result_dtype

OptionalTensors: TypeAlias = tuple[Tensor | None, ...]
Numbers: TypeAlias = tuple[float, ...]
Decay: TypeAlias = Tensor | float
# u, decay (one for each recursion, where there are two) and cut.
Coefficients: TypeAlias = tuple[Tensor, Decay | tuple[Decay, ...], Tensor | None]
# What is scanned; for each recursion, where there are two.
States: TypeAlias = Tensor | tuple[Tensor, ...]


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

    A flag is set where it is non-zero, whatever its dtype; an index is of an integer dtype and counts in no promotion;
    anything else is a real number. A mask is a flag that the engine alone reads: where it is not set, the step is
    transparent; it is the last field. Offsets say where sequences begin that are packed one after the other, and where
    the last one ends; they are the last row field, have one axis, and let every other row field have a value per
    sequence. A field with a range of `numbers` may also be one float for all steps, and is never anything else unless
    it is `per_step` too; as a float it reaches the algorithm among its numbers and is absent from its steps. A wide
    field has one more axis, the last one, of one length for all wide fields of a call: a number for every action.
    """

    name: str
    flag: bool = False
    required: bool = False
    numbers: Range | None = None
    per_step: bool = True
    index: bool = False
    wide: bool = False
    mask: bool = False
    offsets: bool = False

    @property
    def is_real(self) -> bool:
        """Whether a tensor holds real numbers, whose dtype counts."""
        return not (self.flag or self.index)


MASK = Field("mask", flag=True, mask=True)
OFFSETS = Field("cu_seqlens", index=True, required=True, offsets=True)


@dataclass(frozen=True)
class Tile:
    """The algorithm as Triton device functions, which see one step in registers and never a tile's shape.

    `coefficients(step, neighbour, at_open_end, row_values, numbers)` gives the step of the recursion
    y[t] = u[t] + decay[t] * y[neighbour], as (u, decay, cut). `emit(step, neighbour, at_open_end, row_values, state,
    neighbour_state, numbers)` gives the outputs. A step is a tuple in the order of the fields; what a call lacks is
    None in it. The neighbour is the step on the side that y comes from.

    Wide fields are in no step. `derive(step, at_open_end, mask, wide, time_strides, action_strides, n_actions, BLOCK,
    ONE_BLOCK, EVEN, NUMBER, NEIGHBOUR)` reads them and gives a tuple of values, which stand in the step behind its
    fields. It sees steps of any shape: those of a tile, and (NEIGHBOUR) the one beside it, whose derived values need to
    be right only where a coefficient or an output asks a neighbour for them. `wide` are pointers to the first action of
    the step; what a call lacks is None. Actions are walked in blocks of BLOCK, a power of two; ONE_BLOCK says whether
    one covers them all, EVEN whether blocks end where the actions do.
    """

    coefficients: Any
    emit: Any
    derive: Any = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Signature:
    """What a function takes: values per step, the first of which is the one all others are shaped like, and per row.

    Its outputs are shaped like that one too. Those that are targets are not `differentiable`: no gradient is recorded.
    """

    fields: tuple[Field, ...]
    row_fields: tuple[Field, ...]
    outputs: int = 1
    differentiable: bool = True

    @property
    def packed(self) -> bool:
        """Whether the time axis holds sequences of any length, one after the other."""
        return len(self.row_fields) > 0 and self.row_fields[-1].offsets

    def described(self, arguments: Iterable[Any]) -> list[tuple[Field, Any]]:
        """Every argument of a call with its field: those of the fields, then of the row fields."""
        return list(zip((*self.fields, *self.row_fields), arguments, strict=True))

    def output_dtype(self, arguments: Iterable[Any]) -> torch.dtype:
        """The promoted dtype of all real tensors among a call's arguments."""
        return result_dtype(
            value for field, value in self.described(arguments) if isinstance(value, Tensor) and field.is_real
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Algorithm(Signature):
    """A recursion along time, and where its two halves (GPU tile, whole tensors) are found.

    Algorithms are told apart by identity: prepared calls are kept under them. `load_tile` imports Triton and is called
    on the first launch only. `coefficients(fields, row_values, numbers, dim)` and `emit(fields, row_values, numbers, y,
    dim)` are the tile's functions on whole tensors. `uniform_decay(numbers)` is the value of every decay where one
    number serves all steps; it is asked only if every field that may be a number is one. `derived_numbers(numbers)` are
    further numbers for the tile, after those of the fields: worked out in float64 and rounded once, where the tile
    could only combine rounded ones. The number of a field that came as a tensor is 0, and what follows from it not to
    be read. `derived` is how many values the tile derives from wide fields. An algorithm of two `recursions` has a pair
    of decays and of states; on its tile a step ends with the second decay. `ahead` names the real fields of which u
    takes the neighbour's values, in proportion, where no cut stands; None means that a step needs more of its neighbour
    than that and its state, so that a sequence cannot be split. `start_flags` names the flags that stand at the first
    step of an episode, each with the row field that holds the flag of the step behind the last one; these are the last
    row fields. The engine moves such flags to the steps that ended, before the algorithm's functions see them.
    `packed_form` is the algorithm for packed sequences, if it takes any. `operator` is what PyTorch knows the algorithm
    by, once it is registered. `shortcut` is the dispatcher's: the way straight to the last call.
    """

    name: str
    reverse: bool
    load_tile: Callable[[], Tile]
    coefficients: Callable[[OptionalTensors, OptionalTensors, Numbers, int], Coefficients]
    emit: Callable[[OptionalTensors, OptionalTensors, Numbers, Any, int], tuple[Tensor, ...]]
    recursions: int = 1
    uniform_decay: Callable[[Numbers], float | tuple[float, ...]] | None = None
    derived_numbers: Callable[[Numbers], Numbers] | None = None
    derived: int = 0
    ahead: tuple[str, ...] | None = None
    start_flags: tuple[tuple[str, str], ...] = ()
    packed_form: Any = None
    operator: Any = None
    shortcut: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def step_fields(self) -> tuple[Field, ...]:
        """The fields that the algorithm's functions see: all but the mask."""
        return tuple(field for field in self.fields if not field.mask)

    @property
    def takes_mask(self) -> bool:
        """Whether calls may leave steps out."""
        return self.fields[-1].mask

    def __post_init__(self) -> None:
        for kind, fields, most in (
            ("fields", self.fields, MOST_FIELDS),
            ("row fields", self.row_fields, MOST_ROW_FIELDS),
        ):
            # What is derived from wide fields stands behind the others.
            found = len(fields) + (self.derived if fields is self.fields else 0)
            if found > most:
                raise ValueError(f"{self.name}: expected at most {most} {kind}, got {found}")


def with_flags_at_starts(algorithm: Algorithm) -> Algorithm:
    """A backward algorithm whose flags stand at the first step of the next episode, not at the last of the one before.

    The flags of the step behind the last one are further row fields; without them no episode ends there.
    """
    flags = [field.name for field in algorithm.fields if field.flag and not field.mask]
    behind = [Field(name, flag=True) for name in ("next_start", "next_start[1]")[: len(flags)]]
    return replace(
        algorithm,
        name=f"{algorithm.name}, starts_at",
        row_fields=(*algorithm.row_fields, *behind),
        start_flags=tuple((flag, field.name) for flag, field in zip(flags, behind, strict=True)),
    )


def with_packed_sequences(algorithm: Algorithm) -> Algorithm:
    """An algorithm whose rows are sequences of any length, packed one after the other along the time axis."""
    return replace(algorithm, name=f"{algorithm.name}, cu_seqlens", row_fields=(*algorithm.row_fields, OFFSETS))
