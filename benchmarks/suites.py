"""What is measured: the units of work of a suite, in order."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from benchmarks.baselines import BASELINES, BY_OPTION
from benchmarks.neighbours import EXPONENTS
from benchmarks.registry import Algorithm, Configuration, Measure, Target, plain
from benchmarks.results import OURS
from benchmarks.shapes import BFLOAT16, FLOAT_FLAGS

Suite = Literal["release", "quick", "safeguard"]

HEADLINE = ((4096, 128), (16384, 512))
MAIN = (
    *((64, 512), (128, 1024), (256, 1024), (512, 2048), (512, 4096), (512, 128), (512, 512)),
    *((4096, 128), (4096, 512), (4096, 2048), (16384, 128), (16384, 512)),
)
PRODUCTION = (*itertools.product((4096, 8192, 16384, 32768, 38400), (80, 128)), (16384, 16))
SHORT = tuple(itertools.product((4096, 8192, 16384, 32768), (8, 16, 32, 64)))
LONG = ((64, 32768), (8, 131072), (1, 1048576))
TIME_MAJOR = ((4096, 128), (16384, 128), (16384, 512), (16384, 16), (4096, 24), (512, 2048), (128, 4096))

# Which baselines a suite measures where none are named.
DEFAULT_BASELINES: dict[Suite, tuple[str, ...]] = {
    "release": tuple(BY_OPTION),
    "quick": (),
    "safeguard": ("compile",),
}


@dataclass(frozen=True)
class Unit:
    """What is measured together, and either wholly done or not.

    Attributes:
        what: "rl-triton" or the name of a baseline for times of one configuration; else what `measuring` knows.
    """

    algorithm: Algorithm
    what: str
    configuration: Configuration | None = None
    targets: tuple[Target, ...] = ()

    @property
    def id(self) -> str:
        c = self.configuration
        where = "" if c is None else f", {c.size}, {c.layout}, {c.inputs}"
        return f"{self.what}{where}" + "".join(f", {target.measure}" for target in self.targets)


def units_of(
    algorithm: Algorithm,
    suite: Suite,
    device: torch.device,
    baselines: Collection[str] | None = None,
    sizes: Collection[str] | None = None,
) -> list[Unit]:
    """The work of a suite for one algorithm, of some sizes ("4096x128") where they are named."""
    targets = [
        target for target in targets_of(algorithm, suite, device) if not sizes or target.configuration.size in sizes
    ]
    chosen = DEFAULT_BASELINES[suite] if baselines is None else baselines
    on_gpu = device.type == "cuda"
    units = []
    if on_gpu and suite != "safeguard" and not sizes:
        units.append(Unit(algorithm, "first calls"))
    for configuration in dict.fromkeys(target.configuration for target in targets):
        together = tuple(target for target in targets if target.configuration == configuration)
        units.append(Unit(algorithm, OURS, configuration, together))
        if is_compared(algorithm, suite, configuration):
            units += baseline_units(algorithm, configuration, chosen, device)
        if on_gpu and suite != "safeguard":
            units.append(Unit(algorithm, "memory", configuration))
    if on_gpu and suite == "release" and not sizes and not is_variant(algorithm):
        units.append(Unit(algorithm, "kernels"))
        units += [
            Unit(algorithm, f"2^{exponent} steps, {layout}")
            for layout, exponent in itertools.product(("row-major", "time-major"), EXPONENTS)
        ]
    return units


def targets_of(algorithm: Algorithm, suite: Suite, device: torch.device) -> Sequence[Target]:
    """Our figures, those with something to reach first."""
    if suite == "safeguard":
        return algorithm.safeguards
    own = algorithm.targets if device.type == "cuda" else algorithm.cpu_targets
    if suite == "quick":
        return [target for target in own if target.quick]
    if device.type == "cpu" or is_variant(algorithm):
        return own
    listed = {(target.configuration, target.measure) for target in own}
    return [
        *own,
        *(target for target in release_grid(algorithm) if (target.configuration, target.measure) not in listed),
    ]


def release_grid(algorithm: Algorithm) -> Iterator[Target]:
    """Every shape of the release suite, without bounds."""
    measures: dict[Configuration, tuple[Measure, ...]] = {}
    for size in MAIN:
        measures[plain(algorithm, *size)] = ("device", "full call", "amortised")
    for size in (*PRODUCTION, *SHORT, *LONG):
        measures.setdefault(plain(algorithm, *size), ("device", "full call"))
    for size in TIME_MAJOR:
        measures[plain(algorithm, *size, time_major=True)] = ("device", "full call")
    for size in HEADLINE:
        for inputs in (FLOAT_FLAGS, BFLOAT16, *([{"truncated": True}] if has_truncations(algorithm) else [])):
            measures[plain(algorithm, *size, **inputs)] = ("device", "full call", "amortised")
    for configuration, several in measures.items():
        yield from (Target(configuration, measure) for measure in several)


def is_compared(algorithm: Algorithm, suite: Suite, configuration: Configuration) -> bool:
    """Whether baselines are measured there too: where they mean most, since they take their time."""
    size = (configuration.rows, configuration.steps)
    if suite != "release" or is_variant(algorithm):
        return configuration == algorithm.cpu_targets[0].configuration
    if configuration == plain(algorithm, *size, truncated=True):
        return size in HEADLINE
    return configuration == plain(algorithm, *size) and size in (*MAIN, *LONG)


def baseline_units(
    algorithm: Algorithm, configuration: Configuration, options: Collection[str], device: torch.device
) -> Iterator[Unit]:
    for baseline in BASELINES:
        if baseline.option in options and baseline.covers(algorithm, configuration, device):
            measures: tuple[Measure, ...] = baseline.measures if device.type == "cuda" else ("wall",)
            yield Unit(
                algorithm, baseline.name, configuration, tuple(Target(configuration, measure) for measure in measures)
            )


def is_variant(algorithm: Algorithm) -> bool:
    """Whether it is another algorithm with an option, or beside one, measured at a few shapes."""
    return "-" in algorithm.name


def has_truncations(algorithm: Algorithm) -> bool:
    return "truncateds" in algorithm.arguments(Configuration(1, 1, truncated=True), torch.device("cpu"))
