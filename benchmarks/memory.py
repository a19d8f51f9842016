"""Device memory that a call needs beyond its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from benchmarks.guard import guarded
from benchmarks.registry import Algorithm, Configuration, Target, as_tuple
from benchmarks.results import Figure

MOST_PERCENT = 1.0


def memory_figures(algorithm: Algorithm, targets: Sequence[Target], device: torch.device) -> Iterator[Figure]:
    """The peak of one call of every shape, over its outputs."""
    for configuration in dict.fromkeys(target.configuration for target in targets):

        def fill(blank: Figure, configuration: Configuration = configuration) -> Figure:
            return replace(blank, value=_percent_over_outputs(algorithm, configuration, device))

        yield guarded(replace(Figure.of("memory", configuration, "%"), bound=MOST_PERCENT), fill)


def _percent_over_outputs(algorithm: Algorithm, configuration: Configuration, device: torch.device) -> float:
    function, arguments = algorithm.function(), algorithm.arguments(configuration, device)
    function(**arguments)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    outputs = as_tuple(function(**arguments))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    expected = sum(output.numel() * output.element_size() for output in outputs)
    return max(0.0, (peak / expected - 1) * 100)
