"""Device memory that a call needs beyond its outputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.guard import guarded
from benchmarks.registry import Algorithm, Configuration, as_tuple
from benchmarks.results import Figure

MOST_PERCENT = 1.0


def memory_figure(algorithm: Algorithm, configuration: Configuration, device: torch.device) -> Figure:
    """The peak of one call, over its outputs."""

    def fill(blank: Figure) -> Figure:
        return replace(blank, value=_percent_over_outputs(algorithm, configuration, device))

    return guarded(replace(Figure.of("memory", configuration, "%"), bound=MOST_PERCENT), fill)


def _percent_over_outputs(algorithm: Algorithm, configuration: Configuration, device: torch.device) -> float:
    function, arguments = algorithm.function(), algorithm.arguments(configuration, device)
    function(**arguments)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    outputs = as_tuple(function(**arguments))
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    expected: int = sum(output.numel() * output.element_size() for output in outputs)
    return max(0.0, (float(peak) / expected - 1) * 100)
