"""The figures of the table: one time of one call, its bound, and what it is seen against."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from benchmarks import oracle
from benchmarks.guard import guarded
from benchmarks.references import add_call
from benchmarks.registry import Algorithm, Target
from benchmarks.results import Figure, Run
from benchmarks.timing import measure


def target_figure(algorithm: Algorithm, target: Target, device: torch.device, run: Run) -> Figure:
    """Measure a target."""
    unit = "us" if device.type == "cuda" else "ms"
    blank = Figure.of(target.measure, target.configuration, unit)
    if target.bound is not None and _bound_applies(algorithm, device, run):
        blank = replace(blank, bound=target.bound)
    return guarded(blank, partial(_fill, algorithm, target, device, run))


def _bound_applies(algorithm: Algorithm, device: torch.device, run: Run) -> bool:
    return device.type == "cpu" or algorithm.bounds_from in run.device


def _fill(algorithm: Algorithm, target: Target, device: torch.device, run: Run, blank: Figure) -> Figure:
    if target.of_copy is not None and run.copy_bandwidth is None:
        raise RuntimeError("the copy bandwidth of this run is not known")
    arguments = algorithm.arguments(target.configuration, device)
    outputs = oracle.check(algorithm, target.configuration, arguments)
    moved = algorithm.bytes_moved(arguments, outputs)
    del outputs
    scale = 1.0 if blank.unit == "us" else 1e-3
    add = scale * measure(target.measure, add_call(target.configuration, device)).value
    timing = measure(target.measure, partial(algorithm.function(), **arguments))
    value, low, high = (scale * time for time in timing)
    figure = replace(blank, value=value, low=low, high=high, add=add, bytes=moved)
    if target.of_add is not None:
        figure = replace(figure, bound=target.of_add * add, bound_from=f"{target.of_add:g} x torch.add")
    if run.copy_bandwidth is not None:
        at_copy_speed = moved / run.copy_bandwidth * 1e6
        figure = replace(figure, of_copy=at_copy_speed / value)
        if target.of_copy is not None:
            bound = at_copy_speed / target.of_copy
            figure = replace(figure, bound=bound, bound_from=f"{target.of_copy:.0%} of copy")
    return figure
