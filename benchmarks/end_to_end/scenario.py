"""What a learning step is here, who computes its credit assignment, and how both are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from benchmarks import oracle
from benchmarks.baselines import in_float32, is_installed
from benchmarks.registry import Algorithm, Arguments, Configuration, as_tuple
from benchmarks.results import OURS
from benchmarks.whole_arrays import scan_by_doubling, scan_by_loop

# Takes the arguments of credit assignment, and returns its outputs.
Assign = Callable[[Arguments], tuple[Any, ...]]


class Clock:
    """Times a step and, inside it, credit assignment; on the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._credit: list[tuple[Any, Any]] = []

    def step(self, run: Callable[[], None]) -> tuple[float, float]:
        """Milliseconds of a step, and those of credit assignment in it."""
        self._credit = []
        self._wait()
        begin = self._now()
        run()
        end = self._now()
        self._wait()
        return self._between(begin, end), sum(self._between(*pair) for pair in self._credit)

    def credit(self, assign: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The outputs of credit assignment, whose time counts as such."""
        begin = self._now()
        outputs = assign()
        self._credit.append((begin, self._now()))
        return outputs

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        elapsed: float = (end - begin) * 1e3 if isinstance(begin, float) else begin.elapsed_time(end)
        return elapsed


class Workload(Protocol):
    """A learner with a batch to learn from.

    Attributes:
        arguments: of credit assignment, as a step finds them at first.
    """

    arguments: Arguments

    def step(self, assign: Assign, clock: Clock) -> None:
        """Learn from the batch once."""


@dataclass(frozen=True)
class Scenario:
    """A learning step of some size.

    Attributes:
        algorithm: the entry whose function it calls.
        size: environments (or responses) and steps.
        small: the same for a CPU.
        make: sets up a workload of a size.
        values_stay: whether every step finds the same arguments.
    """

    name: str
    algorithm: str
    size: tuple[int, int]
    small: tuple[int, int]
    make: Callable[[torch.device, int, int], Workload]
    values_stay: bool = field(default=True)


IMPLEMENTATIONS = (OURS, "torch.compile", "eager loop", "TorchRL")


def assign_with(who: str, algorithm: Algorithm, arguments: Arguments, *, values_stay: bool) -> Assign | None:
    """Credit assignment by one implementation; None where it has no place for these arguments."""
    if who == OURS:
        function = algorithm.function()
        return lambda given: as_tuple(function(**given))
    if who == "torch.compile":
        # One compiled object for one shape: those reused over shapes have returned wrong results.
        torch._dynamo.reset()
        return torch.compile(partial(in_float32, algorithm, scan_by_doubling), dynamic=False, fullgraph=True)
    if who == "eager loop":
        return partial(in_float32, algorithm, scan_by_loop)
    # What TorchRL wants is made ready once, so that it cannot follow values that change.
    if algorithm.torchrl is None or not values_stay or not is_installed("torchrl"):
        return None
    call = algorithm.torchrl(arguments)
    return lambda given: as_tuple(call())


def gate(assign: Assign, algorithm: Algorithm, size: tuple[int, int], arguments: Arguments) -> None:
    """Raises WrongResultError where credit assignment is off by more than rounding."""
    expected = as_tuple(algorithm.whole(oracle.converted(arguments, torch.float64), scan_by_doubling))
    oracle.check(algorithm, Configuration(*size), assign(arguments), expected)
