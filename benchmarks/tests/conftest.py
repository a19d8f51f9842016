"""Entries in sizes that take no time, and a GPU that is pretended with tensors of the CPU."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks import command_line, compilation, measuring, neighbours, suite, suites, timing
from benchmarks.registry import Algorithm, Configuration, Target, entries

CPU = torch.device("cpu")
COPY_BANDWIDTH = 4.08e12


class Entries(dict[str, Algorithm]):
    """The entries that the command line finds: one, and a test may replace it."""

    @property
    def only(self) -> Algorithm:
        (entry,) = self.values()
        return entry

    def change(self, **changes: object) -> None:
        self[self.only.name] = replace(self.only, **changes)  # type: ignore[arg-type]


@pytest.fixture
def tiny_gae(monkeypatch: pytest.MonkeyPatch) -> Iterator[Entries]:
    """GAE in small sizes, found by the command line."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(timing, "TRIALS", 2)
    monkeypatch.setattr(timing, "SECONDS_PER_TRIAL", 0.001)
    wall = (Configuration(4, 16), Configuration(4, 32))
    small = (
        Target(Configuration(4, 16), "device", bound=1e9, quick=True),
        Target(Configuration(4, 16, truncated=True), "full call", of_add=1e9),
        Target(Configuration(3, 8, time_major=True), "amortised", of_add=1e9),
    )
    found = Entries(gae=entries()["gae"])
    found.change(
        targets=small,
        cpu_targets=tuple(Target(configuration, "wall", bound=1e6, quick=True) for configuration in wall),
        safeguards=(Target(Configuration(4, 16), "device", of_copy=1e-12),),
    )
    monkeypatch.setattr(command_line, "entries", lambda: found)
    yield found
    torch.set_num_threads(threads)


class FakeEvent:
    """An event that the host's clock stands in for."""

    clock = itertools.count(1)

    def record(self) -> None:
        self.at = next(self.clock)

    def elapsed_time(self, end: FakeEvent) -> float:
        return float(end.at - self.at)


class FakeGraph:
    def replay(self) -> None:
        time.sleep(0)


@pytest.fixture
def pretended_gpu(
    tiny_gae: Entries, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Entries:
    """The run of a GPU with CPU tensors: everything but the device itself."""

    @contextlib.contextmanager
    def capture(graph: FakeGraph) -> Iterator[None]:
        yield

    fakes = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "get_device_name": lambda device: "NVIDIA H200",
        "Event": lambda enable_timing: FakeEvent(),
        "CUDAGraph": FakeGraph,
        "graph": capture,
        "memory_allocated": lambda device: 0,
        "max_memory_allocated": lambda device: 4 * 16 * 4,
        "reset_peak_memory_stats": lambda device: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    # Other processes may compile kernels meanwhile.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
    make_arguments = tiny_gae.only.arguments
    tiny_gae.change(arguments=lambda configuration, device: make_arguments(configuration, CPU))
    monkeypatch.setattr(measuring, "add_call", lambda configuration, device: lambda: None)
    monkeypatch.setattr(suite, "copy_bandwidth", lambda device: COPY_BANDWIDTH)
    monkeypatch.setattr(suite, "empty_launch_time", lambda: 1.0)
    monkeypatch.setattr(measuring, "sweep_figures", partial(neighbours.sweep_figures, lengths=(1, 7, 8)))
    monkeypatch.setattr(suites, "EXPONENTS", (6,))
    monkeypatch.setattr(suites, "release_grid", lambda algorithm: iter(()))
    monkeypatch.setattr(compilation, "LENGTHS", (1, 8))
    return tiny_gae
