"""All results of a version on one GPU, ready to be looked up and compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.registry import Configuration, Measure, entries
from benchmarks.results import FOLDER, OURS, STAGED, Figure, Run, latest, load

# What a time of ours is compared with, and by which of its own: a caller of NumPy waits for the result, too.
COMPARED: dict[Measure, Measure] = {"device": "device", "full call": "full call", "wall": "full call"}
MICROSECONDS = {"us": 1.0, "ms": 1e3}


@dataclass(frozen=True)
class Speedup:
    """How many times as long another implementation takes as ours; below 1 it is faster."""

    algorithm: str
    mine: Figure
    other: Figure

    @property
    def factor(self) -> float:
        return microseconds(self.other) / microseconds(self.mine)


class Collection:
    """The latest figures on one device, by algorithm."""

    def __init__(self, folder: Path) -> None:
        self.label = folder.name
        self.figures: dict[str, dict[Figure, Run]] = {
            path.stem: latest(load(path)) for path in sorted(folder.glob("*.jsonl"), key=_place)
        }
        self._index = {
            (algorithm, *figure.subject): figure for algorithm, several in self.figures.items() for figure in several
        }

    @property
    def runs(self) -> list[Run]:
        """Those that figures come from, oldest first."""
        runs = {run for several in self.figures.values() for run in several.values()}
        return sorted(runs, key=lambda run: (run.date, run.algorithm))

    @property
    def is_of_cpu(self) -> bool:
        return all(run.device == "CPU" for run in self.runs)

    def find(
        self, algorithm: str, measure: str, configuration: Configuration, implementation: str = OURS
    ) -> Figure | None:
        """The figure, if it has a value."""
        subject = Figure.of(measure, configuration, "", implementation).subject
        figure = self._index.get((algorithm, *subject))
        return None if figure is None or figure.value is None else figure

    def of(self, algorithm: str, measure: str | None = None, implementation: str = OURS) -> Iterator[Figure]:
        """Figures with a value, in the order of their measurement."""
        for figure in self.figures.get(algorithm, ()):
            if figure.value is None or figure.implementation != implementation:
                continue
            if measure is None or figure.measure == measure:
                yield figure

    def speedups(self) -> Iterator[Speedup]:
        """Every time of another implementation beside ours of the same call."""
        for algorithm, several in self.figures.items():
            for other in several:
                if other.implementation == OURS or other.value is None or other.measure not in COMPARED:
                    continue
                # On the CPU ours has a wall time as well.
                for measure in (other.measure, COMPARED[other.measure]):
                    mine = self._index.get((algorithm, OURS, measure, *other.subject[2:]))
                    if mine is not None and mine.value is not None:
                        yield Speedup(algorithm, mine, other)
                        break


def _place(path: Path) -> tuple[int, str]:
    """Files in the order of the entries, then others."""
    names = list(entries())
    return (names.index(path.stem) if path.stem in names else len(names)), path.stem


def microseconds(figure: Figure) -> float:
    assert figure.value is not None
    return figure.value * MICROSECONDS[figure.unit]


def newest_version(folder: Path = FOLDER) -> str:
    """What is staged or, where nothing is, the last version."""
    names = [path.name for path in folder.iterdir() if any(path.glob("*/*.jsonl"))] if folder.is_dir() else []
    if not names:
        raise ValueError(f"there are no results in {folder}")
    return STAGED if STAGED in names else max(names, key=_order)


def _order(version: str) -> tuple[list[int], str]:
    numbers = version.split(".")[:3]
    return [int(number) if number.isdigit() else 0 for number in numbers], version


def collections(version: str, folder: Path = FOLDER) -> list[Collection]:
    """One per device, GPUs first."""
    folders: Iterable[Path] = sorted(path for path in (folder / version).glob("*") if any(path.glob("*.jsonl")))
    found = [Collection(path) for path in folders]
    if not found:
        raise ValueError(f"--version {version}: there are no results in {folder / version}")
    return sorted(found, key=lambda collection: collection.is_of_cpu)
