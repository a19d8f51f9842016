"""The figures of a unit of work: arguments are drawn, results compared with the oracle, and only then timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks import oracle
from benchmarks.baselines import BASELINES
from benchmarks.compilation import first_call_figures, kernel_figures
from benchmarks.guard import guarded
from benchmarks.memory import memory_figure
from benchmarks.neighbours import sweep_figures
from benchmarks.own_process import ask
from benchmarks.references import add_call
from benchmarks.registry import Algorithm, Arguments, Configuration, Measure, Target, as_tuple
from benchmarks.results import OURS, Figure, Run
from benchmarks.suites import Unit
from benchmarks.timing import Timing, measure

BASELINES_BY_NAME = {baseline.name: baseline for baseline in BASELINES}


@dataclass
class Inputs:
    """The arguments of a configuration and what its outputs have to be, kept for the units that follow each other."""

    algorithm: Algorithm
    configuration: Configuration
    arguments: Arguments
    expected: tuple[Tensor, ...]

    def fits(self, unit: Unit) -> bool:
        return self.algorithm is unit.algorithm and self.configuration == unit.configuration


@dataclass(frozen=True)
class Checked:
    """A call whose result is right: how it is timed, its error, the bytes it moves, and what a first call took."""

    time: Callable[[Measure], Timing]
    error: float
    moved: int = 0
    first_call: tuple[str, float] | None = None


class Measuring:
    """Measures one unit after the other on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._inputs: Inputs | None = None

    def figures(self, unit: Unit, run: Run) -> Iterator[Figure]:
        """The figures of a unit, as they come."""
        algorithm, configuration = unit.algorithm, unit.configuration
        if unit.what == "first calls":
            yield from first_call_figures(algorithm, self.device)
        elif unit.what == "kernels":
            yield from kernel_figures(algorithm, self.device)
        elif configuration is None:
            size, layout = unit.what.split(" steps, ")
            exponent, launched = int(size.removeprefix("2^")), run.empty_launch or 0.0
            yield from sweep_figures(algorithm, exponent, layout == "time-major", self.device, launched)
        elif unit.what == "memory":
            # What the unit before holds would not count, but leave less for large shapes.
            self._inputs = None
            yield memory_figure(algorithm, configuration, self.device)
        elif unit.what == OURS:
            yield from self._timed(unit, partial(self._ours, unit), run)
        elif BASELINES_BY_NAME[unit.what].own_process:
            yield from self._timed(unit, partial(self._in_own_process, unit), run)
        else:
            yield from self._timed(unit, partial(self._baseline, unit), run)

    def _prepared(self, unit: Unit) -> Inputs:
        if self._inputs is None or not self._inputs.fits(unit):
            self._inputs = None
            assert unit.configuration is not None
            arguments = unit.algorithm.arguments(unit.configuration, self.device)
            expected = oracle.expected_outputs(unit.algorithm, unit.configuration, arguments)
            self._inputs = Inputs(unit.algorithm, unit.configuration, arguments, expected)
        return self._inputs

    def _ours(self, unit: Unit) -> Checked:
        inputs = self._prepared(unit)
        call = partial(unit.algorithm.function(), **inputs.arguments)
        outputs = oracle.poisoned_call(call, inputs.arguments)
        error = oracle.check(unit.algorithm, inputs.configuration, outputs, inputs.expected)
        moved = unit.algorithm.bytes_moved(inputs.arguments, as_tuple(outputs))
        return Checked(lambda name: measure(name, call), error, moved)

    def _baseline(self, unit: Unit) -> Checked:
        inputs = self._prepared(unit)
        call = BASELINES_BY_NAME[unit.what].make(unit.algorithm, inputs.arguments)
        error = oracle.check(unit.algorithm, inputs.configuration, call(), inputs.expected)
        return Checked(lambda name: measure(name, call), error)

    def _in_own_process(self, unit: Unit) -> Checked:
        assert unit.configuration is not None
        measures = tuple(target.measure for target in unit.targets)
        option = BASELINES_BY_NAME[unit.what].option
        answer = ask(option, unit.algorithm, unit.configuration, self.device, measures)
        how = "first call, from its cache" if answer["from_cache"] else "first call, compiling"
        return Checked(answer["timings"].__getitem__, answer["error"], first_call=(how, answer["first_call"]))

    def _timed(self, unit: Unit, prepare: Callable[[], Checked], run: Run) -> Iterator[Figure]:
        """The figures of one configuration; where the result is wrong, or there is none, none has a value."""
        has_bounds = unit.what == OURS and (self.device.type == "cpu" or unit.algorithm.bounds_from in run.device)
        blanks = [_blank(target, unit.what, has_bounds) for target in unit.targets]
        passed: list[Checked] = []

        def check(blank: Figure) -> Figure:
            passed.append(prepare())
            return blank

        gate = guarded(blanks[0], check)
        if gate.problem:
            yield from (replace(blank, problem=gate.problem) for blank in blanks)
            return
        (checked,) = passed
        for target, blank in zip(unit.targets, blanks, strict=True):
            timing = partial(checked.time, target.measure)
            figure = guarded(replace(blank, error=checked.error), partial(_with_time, timing))
            if figure.value is not None and unit.what == OURS:
                figure = guarded(figure, partial(self._beside_references, target, checked.moved, run))
            yield figure
        if checked.first_call is not None:
            how, seconds = checked.first_call
            yield replace(Figure.of(how, unit.targets[0].configuration, "ms", unit.what), value=seconds * 1e3)

    def _beside_references(self, target: Target, moved: int, run: Run, figure: Figure) -> Figure:
        """With a `torch.add` of the shape and the copy bandwidth of the run, and bounds made of them."""
        value = figure.value
        assert value is not None
        scale = 1.0 if figure.unit == "us" else 1e-3
        add = scale * measure(target.measure, add_call(target.configuration, self.device)).value
        figure = replace(figure, add=add, bytes=moved)
        if target.of_add is not None:
            figure = replace(figure, bound=target.of_add * add, bound_from=f"{target.of_add:g} x torch.add")
        if run.copy_bandwidth is not None:
            at_copy_speed = moved / run.copy_bandwidth * 1e6
            figure = replace(figure, of_copy=at_copy_speed / value)
            if target.of_copy is not None:
                bound = at_copy_speed / target.of_copy
                figure = replace(figure, bound=bound, bound_from=f"{target.of_copy:.0%} of copy")
        elif target.of_copy is not None:
            raise RuntimeError("the copy bandwidth of this run is not known")
        return figure


def _blank(target: Target, implementation: str, has_bounds: bool) -> Figure:
    unit = "ms" if target.measure == "wall" else "us"
    blank = Figure.of(target.measure, target.configuration, unit, implementation)
    return replace(blank, bound=target.bound) if has_bounds else blank


def _with_time(timing: Callable[[], Timing], blank: Figure) -> Figure:
    """A blank with a time in its unit."""
    scale = 1.0 if blank.unit == "us" else 1e-3
    value, low, high = (scale * time for time in timing())
    return replace(blank, value=value, low=low, high=high)
