"""A run: units of work one after the other, every figure written and shown as it comes.

It can be interrupted at any time: what is finished is not measured again by the next run of the same code.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.guard import guarded
from benchmarks.measuring import BASELINES_BY_NAME, Measuring
from benchmarks.monotonicity import faster_though_larger
from benchmarks.own_process import ask
from benchmarks.progress import Progress
from benchmarks.references import COPIED_ELEMENTS, copy_bandwidth, empty_launch_time
from benchmarks.registry import TIMES, Algorithm
from benchmarks.results import OURS, Figure, Results, Run, describe_run, finished_units
from benchmarks.suites import Suite, Unit

CPU_THREADS = 2
# What is left of a time limit has to be more, or the compiler's cache is not begun to be filled.
SECONDS_TO_COMPILE = 180.0
# Of a compiled baseline's time in the same run, for the safeguard.
MOST_OF_COMPILED = 50.0


@dataclass
class Outcome:
    """What a run measured, and whether it came to its end."""

    figures: list[Figure] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    skipped: int = 0
    left: int = 0


@dataclass(frozen=True)
class Plan:
    """The work of a run.

    Attributes:
        folder: where files go, one per algorithm; None writes none.
        time_limit: seconds after which no unit is begun that may not be done in time.
        compile_jobs: processes that fill the compiler's cache beforehand.
    """

    suite: Suite
    device: torch.device
    units: dict[str, list[Unit]]
    folder: Path | None
    resume: bool = True
    time_limit: float | None = None
    compile_jobs: int = 1

    def path(self, algorithm: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{algorithm}.jsonl"


def run_plan(plan: Plan, outcome: Outcome) -> None:
    """Measure; the outcome is filled as it comes, so that it is there after an interrupt too."""
    if plan.device.type == "cpu":
        torch.set_num_threads(CPU_THREADS)
    blank = describe_run("", plan.suite, plan.device)
    left = {name: _unfinished(plan, name, replace(blank, algorithm=name)) for name in plan.units}
    outcome.left = sum(map(len, left.values()))
    outcome.skipped = sum(map(len, plan.units.values())) - outcome.left
    if not outcome.left:
        return
    with Progress(outcome.left) as progress:
        references = reference_figures(plan.device) if plan.device.type == "cuda" else ()
        values = {figure.measure: figure.value for figure in references}
        run = replace(blank, copy_bandwidth=values.get("copy"), empty_launch=values.get("empty launch"))
        progress.show(*report.machine_lines(run), *report.sentences(references))
        measuring = Measuring(plan.device)
        for name, units in left.items():
            if not units:
                continue
            own_run = replace(run, algorithm=name)
            if not _run_algorithm(plan, own_run, units, references, measuring, progress, outcome):
                return


def _unfinished(plan: Plan, name: str, run: Run) -> list[Unit]:
    path = plan.path(name)
    done = finished_units(path, run) if path is not None and plan.resume else set()
    return [unit for unit in plan.units[name] if unit.id not in done]


def _run_algorithm(
    plan: Plan,
    run: Run,
    units: Sequence[Unit],
    references: Sequence[Figure],
    measuring: Measuring,
    progress: Progress,
    outcome: Outcome,
) -> bool:
    """Whether all units were done before the time limit."""
    with Results(plan.path(run.algorithm), run) as results:
        if results.path is not None:
            outcome.paths.append(results.path)
        progress.show(report.run_line(run))
        for figure in references:
            _add(figure, results, outcome)
        if progress.elapsed + SECONDS_TO_COMPILE > (plan.time_limit or math.inf):
            return False
        fill_compiler_cache(units, plan.device, plan.compile_jobs)
        progress.show(report.terminal_row(list(report.COLUMNS)))
        for unit in units:
            if progress.elapsed + progress.longest_unit > (plan.time_limit or math.inf):
                return False
            progress.start(f"{run.algorithm}: {unit.id}")
            figures = []
            for figure in measuring.figures(unit, run):
                _add(figure, results, outcome)
                figures.append(figure)
                if figure.measure in TIMES:
                    progress.show(report.terminal_line(figure))
            progress.show(*report.sentences(figures))
            if not any(figure.problem for figure in figures):
                results.finish(unit.id)
            progress.finish()
            outcome.left -= 1
        if plan.suite == "safeguard":
            for figure in ratio_figures(results.figures):
                _add(figure, results, outcome)
                progress.show(*report.sentences([figure]))
        progress.show(*faster_though_larger(results.figures))
    return True


def _add(figure: Figure, results: Results, outcome: Outcome) -> None:
    results.add(figure)
    outcome.figures.append(figure)


def fill_compiler_cache(units: Iterable[Unit], device: torch.device, jobs: int) -> None:
    """Compile several baselines at a time, each in a process of its own; what fails says so when it is measured."""
    compiled = [baseline.name for baseline in BASELINES_BY_NAME.values() if baseline.own_process]
    waiting = [unit for unit in units if unit.what in compiled]
    if jobs <= 1 or len(waiting) <= 1:
        return

    def compile_one(unit: Unit) -> None:
        assert unit.configuration is not None
        with contextlib.suppress(Exception):
            ask(BASELINES_BY_NAME[unit.what].option, unit.algorithm, unit.configuration, device, ())

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(compile_one, waiting))


def reference_figures(device: torch.device) -> tuple[Figure, Figure]:
    """Copy bandwidth in bytes a second, and an empty launch in microseconds."""
    copy = Figure("copy", 1, COPIED_ELEMENTS, "row-major", "float32", "B/s")
    launch = Figure("empty launch", 1, 1, "row-major", unit="us")
    return (
        guarded(copy, lambda blank: replace(blank, value=copy_bandwidth(device))),
        guarded(launch, lambda blank: replace(blank, value=empty_launch_time())),
    )


def ratio_figures(figures: Sequence[Figure]) -> list[Figure]:
    """Our times as percentages of those of the compiled baseline, with a bound."""
    ours = {figure.subject[1:]: figure for figure in figures if figure.implementation == OURS}
    ratios = []
    for other in figures:
        mine = ours.get(other.subject[1:])
        if other.implementation == "torch.compile" and mine is not None and other.measure in TIMES:
            blank = replace(mine, measure=f"{mine.measure}, of torch.compile", unit="%", bound=MOST_OF_COMPILED)
            blank = replace(blank, value=None, low=None, high=None, add=None, bytes=None, of_copy=None, bound_from="")
            problem = mine.problem or other.problem
            if problem or not mine.value or not other.value:
                ratios.append(replace(blank, problem=problem or "not measured"))
            else:
                ratios.append(replace(blank, value=100 * mine.value / other.value))
    return ratios


def algorithms_named(patterns: Sequence[str], known: dict[str, Algorithm]) -> list[Algorithm]:
    """The entries that any of the patterns names.

    Raises:
        ValueError: a pattern names none.
    """
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise ValueError(f"--algos: expected some of {', '.join(known)}, got {pattern}")
    return [entry for name, entry in known.items() if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
