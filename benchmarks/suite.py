"""The runs: which figures are measured, and in which order. Every figure is written and shown as it comes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks import report
from benchmarks.compilation import first_call_figures, kernel_figures
from benchmarks.guard import guarded
from benchmarks.memory import memory_figures
from benchmarks.neighbours import EXPONENTS, sweep_figures
from benchmarks.references import COPIED_ELEMENTS, copy_bandwidth, empty_launch_time
from benchmarks.registry import Algorithm, Target
from benchmarks.results import Figure, Results, describe_run
from benchmarks.targets import target_figure

Suite = Literal["full", "quick", "check"]
CPU_THREADS = 2


def run_suite(algorithm: Algorithm, suite: Suite, device: torch.device, folder: Path | None) -> Results:
    """Measure one algorithm; the results, which are also in a file of `folder`."""
    on_gpu = device.type == "cuda"
    before: list[Figure] = []
    if on_gpu:
        if suite != "check":
            before += first_call_figures(algorithm, device)
        before += reference_figures(device)
    else:
        torch.set_num_threads(CPU_THREADS)
    values = {figure.measure: figure.value for figure in before}
    copied, launched = values.get("copy"), values.get("empty launch")
    run = describe_run(algorithm.name, suite, device, copy_bandwidth=copied, empty_launch=launched)
    targets = select_targets(algorithm, suite, device)
    with Results(folder, run) as results:
        _show(report.run_lines(run))
        if on_gpu and algorithm.bounds_from not in run.device:
            _show([f"Bounds in microseconds are for an {algorithm.bounds_from}, so they are left out here."])
        _show([report.terminal_row(list(report.COLUMNS))])
        for target in targets:
            figure = target_figure(algorithm, target, device, run)
            results.add(figure)
            _show([report.terminal_line(figure)])
        _sum_up(results, before)
        if on_gpu and suite != "check":
            _sum_up(results, memory_figures(algorithm, targets, device))
        if on_gpu and suite == "full":
            _sum_up(results, kernel_figures(algorithm, device))
            for time_major, exponent in itertools.product((False, True), EXPONENTS):
                _sum_up(results, sweep_figures(algorithm, exponent, time_major, device, launched or 0.0))
    return results


def reference_figures(device: torch.device) -> tuple[Figure, Figure]:
    """Copy bandwidth in bytes a second, and an empty launch in microseconds."""
    copy = Figure("copy", 1, COPIED_ELEMENTS, "row-major", "float32", "B/s")
    launch = Figure("empty launch", 1, 1, "row-major", unit="us")
    return (
        guarded(copy, lambda blank: replace(blank, value=copy_bandwidth(device))),
        guarded(launch, lambda blank: replace(blank, value=empty_launch_time())),
    )


def select_targets(algorithm: Algorithm, suite: Suite, device: torch.device) -> Sequence[Target]:
    """The figures of a suite that have a row of the table."""
    if suite == "check":
        return algorithm.safeguards
    targets = algorithm.targets if device.type == "cuda" else algorithm.cpu_targets
    return [target for target in targets if target.quick] if suite == "quick" else targets


def _sum_up(results: Results, figures: Iterable[Figure]) -> None:
    """Add figures that have no row of the table."""
    added = []
    for figure in figures:
        results.add(figure)
        added.append(figure)
    _show(report.sentences(added))


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)
