"""What is measured: an algorithm's entry, the shapes of its calls, and what each figure has to reach.

A module of `algorithms` holds the `ENTRIES` of an algorithm: itself, and what differs by an option. All that is
measured follows from an entry.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

Measure = Literal["device", "full call", "amortised", "wall"]
TIMES: tuple[Measure, ...] = get_args(Measure)
Arguments = dict[str, Any]
LONGEST_LOOP = 4096


@dataclass(frozen=True)
class Configuration:
    """The shape, layout and dtypes of one call."""

    rows: int
    steps: int
    dtype: torch.dtype = torch.float32
    flags: torch.dtype = torch.bool
    time_major: bool = False
    truncated: bool = False
    actions: int = 0

    @property
    def size(self) -> str:
        return f"{self.rows}x{self.steps}"

    @property
    def shape(self) -> tuple[int, int]:
        return (self.steps, self.rows) if self.time_major else (self.rows, self.steps)

    @property
    def layout(self) -> str:
        return "time-major" if self.time_major else "row-major"

    @property
    def inputs(self) -> str:
        """The dtypes, and what else there is, in words."""
        words = f"{dtype_name(self.dtype)}, {dtype_name(self.flags)} flags"
        words += ", truncations" if self.truncated else ""
        return f"{words}, {self.actions} actions" if self.actions else words


@dataclass(frozen=True)
class Target:
    """A figure to measure and, in at most one of three ways, what it has to reach.

    Attributes:
        bound: microseconds on the GPU of `Algorithm.bounds_from`, milliseconds on the CPU.
        of_add: at most so many times a `torch.add` of the same shape in the same run.
        of_copy: at least this fraction of the copy bandwidth of the same run.
        quick: whether a quick run measures it too.
    """

    configuration: Configuration
    measure: Measure
    bound: float | None = None
    of_add: float | None = None
    of_copy: float | None = None
    quick: bool = False


def is_short(configuration: Configuration) -> bool:
    """Whether a loop over the steps is done in seconds."""
    return configuration.steps <= LONGEST_LOOP


@dataclass(frozen=True)
class Algorithm:
    """All that the benchmarks need to know of an algorithm.

    Attributes:
        name: as on the command line.
        function: loads the public function, which takes `arguments` by name.
        reference: loads the sequential definition, which takes the same arguments and a `dtype` to compute in.
        arguments: draws the arguments of a call.
        whole: the same on whole arrays, with the scan of `whole_arrays` that it is given: what results of rows too long
            for the sequential definition are compared with, and what baselines run.
        bytes_moved: what a call has to read and write at least.
        bounds_from: part of the name of the GPU that `Target.bound` is for.
        targets: figures on a GPU, in the order of the table.
        cpu_targets: figures on the CPU.
        safeguards: the few figures of `--check`, with bounds that hold on any GPU.
        has_loop: whether a loop over time makes a baseline: sequences packed in one row would take one step at a time.
        actions: what configurations have that are not about the number of actions.
        torchrl: the same call of TorchRL, where that has one.
        is_sequential: whether a call is small enough to be compared with the sequential definition.
    """

    name: str
    function: Callable[[], Callable[..., Any]]
    reference: Callable[[], Callable[..., Any]]
    arguments: Callable[[Configuration, torch.device], Arguments]
    whole: Callable[[Arguments, Any], Any]
    bytes_moved: Callable[[Arguments, tuple[Tensor, ...]], int]
    bounds_from: str
    targets: tuple[Target, ...]
    cpu_targets: tuple[Target, ...]
    safeguards: tuple[Target, ...]
    is_sequential: Callable[[Configuration], bool] = is_short
    has_loop: bool = True
    actions: int = 0
    torchrl: Callable[[Arguments], Callable[[], Any]] | None = None


def plain(algorithm: Algorithm, rows: int, steps: int, **inputs: Any) -> Configuration:
    """A configuration of a size, as most are measured."""
    return Configuration(rows, steps, **({"actions": algorithm.actions} | inputs))


def imported(module: str, name: str) -> Callable[[], Callable[..., Any]]:
    """A function of a package, imported when it is asked for."""

    def load_function() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function

    return load_function


@functools.cache
def entries() -> dict[str, Algorithm]:
    """Every entry by its name, variants behind the algorithm that they are made of."""
    found: dict[str, Algorithm] = {}
    for path in sorted((Path(__file__).parent / "algorithms").glob("[a-z]*.py")):
        for entry in importlib.import_module(f"benchmarks.algorithms.{path.stem}").ENTRIES:
            if entry.name in found:
                raise ValueError(f"two entries are named {entry.name!r}")
            found[entry.name] = entry
    return found


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """The outputs of a call, whether it returns one tensor (or array) or several."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bytes_once(arguments: Arguments, outputs: tuple[Tensor, ...]) -> int:
    """Every input read once and every output written once."""
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *outputs))
