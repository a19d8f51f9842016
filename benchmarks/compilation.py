"""What compiling costs: the first call, and how many kernels many lengths need."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.guard import guarded
from benchmarks.registry import Algorithm, Configuration
from benchmarks.results import Figure

MOST_KERNELS = 8
LENGTHS = (1, 4096, *sorted(random.Random(0).sample(range(2, 4096), 198)))
ROWS = 40


def first_call_figures(algorithm: Algorithm, device: torch.device) -> Iterator[Figure]:
    """The first call in a process, and the first of another length.

    Only true before anything else of the algorithm ran in this process.
    """
    torch.cuda.synchronize(device)
    kernels = _kernels_on_disk()
    first = _first_call(algorithm, Configuration(4096, 128), device, "first call")
    how = "compiling" if _kernels_on_disk() > kernels else "kernel from disk"
    yield replace(first, measure=f"first call, {how}")
    yield _first_call(algorithm, Configuration(4096, 120), device, "first call of another length")


def _first_call(algorithm: Algorithm, configuration: Configuration, device: torch.device, name: str) -> Figure:
    def fill(blank: Figure) -> Figure:
        arguments = algorithm.arguments(configuration, device)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        algorithm.function()(**arguments)
        torch.cuda.synchronize()
        return replace(blank, value=(time.perf_counter() - begin) * 1e3)

    return guarded(Figure.of(name, configuration, "ms"), fill)


def _kernels_on_disk() -> int:
    """The entries of Triton's cache."""
    home = os.environ.get("TRITON_HOME") or Path.home()
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home) / ".triton" / "cache")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def kernel_figures(algorithm: Algorithm, device: torch.device) -> Iterator[Figure]:
    """How many kernels 200 lengths compile, per layout."""
    for time_major in (False, True):
        configuration = Configuration(ROWS, max(LENGTHS), time_major=time_major)

        def fill(blank: Figure, configuration: Configuration = configuration) -> Figure:
            return replace(blank, value=float(_kernels_over_lengths(algorithm, configuration, device)))

        blank = replace(Figure.of("kernels", configuration, ""), bound=float(MOST_KERNELS))
        yield guarded(blank, fill)


def _kernels_over_lengths(algorithm: Algorithm, configuration: Configuration, device: torch.device) -> int:
    from rl_triton_core.engine.kernels import scan

    # Triton finds what it compiled before on disk again; the calls' own shapes are used nowhere else.
    scan.device_caches.clear()
    for steps in LENGTHS:
        algorithm.function()(**algorithm.arguments(replace(configuration, steps=steps), device))
    torch.cuda.synchronize()
    compiled = sum(len(caches[0]) for caches in scan.device_caches.values())
    if compiled == 0:
        raise RuntimeError("the calls left nothing in Triton's cache of kernels")
    return compiled
