"""Whether any length falls out of line: the cost of a step, over lengths from 1 to millions at equal total size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks import oracle
from benchmarks.guard import guarded
from benchmarks.registry import Algorithm, Configuration, as_tuple
from benchmarks.results import Figure
from benchmarks.timing import device_time

LENGTHS = (
    *(1, 2, 4, 7, 8, 12, 16, 31, 32, 64, 100, 127, 128, 129, 200, 256, 500, 512, 1000, 1024),
    *(2048, 3000, 4096, 4097, 8192, 16384, 65536, 262144, 2**22),
)
EXPONENTS = (22, 24)
# A length may cost this many times a neighbour's time for a step.
MOST = 1.3


def sweep_figures(
    algorithm: Algorithm,
    exponent: int,
    time_major: bool,
    device: torch.device,
    empty_launch: float,
    lengths: Sequence[int] = LENGTHS,
) -> list[Figure]:
    """Picoseconds a step, less an empty launch, for shapes of about 2**exponent steps."""
    figures = []
    for steps in lengths:
        configuration = Configuration(max(1, 2**exponent // steps), steps, time_major=time_major)
        blank = Figure.of(f"2^{exponent} steps", configuration, "ps")
        figures.append(guarded(blank, partial(_fill, algorithm, configuration, device, empty_launch)))
    return with_bounds(figures)


def _fill(
    algorithm: Algorithm, configuration: Configuration, device: torch.device, empty_launch: float, blank: Figure
) -> Figure:
    arguments = algorithm.arguments(configuration, device)
    outputs = oracle.poisoned_call(partial(algorithm.function(), **arguments), arguments)
    expected = oracle.expected_outputs(algorithm, configuration, arguments, sequential=False)
    oracle.check(algorithm, configuration, outputs, expected)
    moved = algorithm.bytes_moved(arguments, as_tuple(outputs))
    del outputs, expected
    time = device_time(partial(algorithm.function(), **arguments), calls=20, replays=7)
    value, low, high = ((t - empty_launch) * 1e6 / (configuration.rows * configuration.steps) for t in time)
    return replace(blank, value=value, low=low, high=high, bytes=moved)


def with_bounds(figures: Sequence[Figure]) -> list[Figure]:
    """Bound every figure by the cheaper of its neighbours."""
    bounded = []
    for i, figure in enumerate(figures):
        beside = (*figures[max(i - 1, 0) : i], *figures[i + 1 : i + 2])
        values = [neighbour.value for neighbour in beside if neighbour.value is not None]
        bounded.append(replace(figure, bound=MOST * min(values)) if values else figure)
    return bounded
