"""Figures and the runs that they come from, as JSON lines.

A file holds one algorithm on one GPU. A run is a line, then each of its figures is one, and each unit of work that is
finished; the next run is appended. What is measured is staged in `unreleased`, and `promote` moves it to a version.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from benchmarks.registry import TIMES, Configuration

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results"
STAGED = "unreleased"
OURS = "rl-triton"
SLACK = 0.05


@dataclass(frozen=True)
class Run:
    """Where and when figures were measured.

    Attributes:
        copy_bandwidth: bytes a second, read and written, of the run's own copy kernel.
        empty_launch: microseconds on the device of a kernel that does nothing.
        sources: a digest of all code that was run.
    """

    algorithm: str
    suite: str
    device: str
    driver: str | None
    threads: int
    torch: str
    triton: str | None
    python: str
    commit: str | None
    dirty: bool | None
    date: str
    copy_bandwidth: float | None = None
    empty_launch: float | None = None
    sources: str | None = None

    def continues(self, other: Run) -> bool:
        """Whether what the other run measured stands for this one."""
        same = ("algorithm", "device", "driver", "threads", "torch", "triton", "python", "sources")
        return self.sources is not None and all(getattr(self, name) == getattr(other, name) for name in same)


@dataclass(frozen=True)
class Figure:
    """One measured number, what it has to reach, and what it is seen against.

    Attributes:
        low, high: the spread of what `value` was taken from.
        bound: what `value` may be at most, in the same unit.
        bound_from: where the bound comes from, if not from the table of targets.
        add: the same measure of a `torch.add` of that shape, in the same unit.
        bytes: what the call has to read and write at least.
        of_copy: bytes over time, as a fraction of the run's copy bandwidth.
        error: the largest difference from the float64 oracle, relative to the largest value.
        implementation: what was measured, or the baseline.
        problem: why there is no value.
    """

    measure: str
    rows: int
    steps: int
    layout: str
    inputs: str = ""
    unit: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    bound_from: str = ""
    add: float | None = None
    bytes: int | None = None
    of_copy: float | None = None
    problem: str = ""
    error: float | None = None
    implementation: str = OURS

    @classmethod
    def of(cls, measure: str, configuration: Configuration, unit: str, implementation: str = OURS) -> Figure:
        """A figure that has yet to be measured."""
        c = configuration
        return cls(measure, c.rows, c.steps, c.layout, c.inputs, unit, implementation=implementation)

    @property
    def subject(self) -> tuple[str, str, int, int, str, str]:
        """What it is a figure of: a later one of the same takes its place."""
        return (self.implementation, self.measure, self.rows, self.steps, self.layout, self.inputs)

    @property
    def excess(self) -> float | None:
        """How far the value is over its bound, as a fraction; negative below it."""
        if self.value is None or self.bound is None:
            return None
        return self.value / self.bound - 1

    @property
    def is_short(self) -> bool:
        """Whether the value misses its bound; a time may be 5 % over."""
        return self.excess is not None and self.excess > (SLACK if self.measure in TIMES else 0)

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second."""
        if self.value is None or self.bytes is None:
            return None
        return self.bytes / self.value * (1e6 if self.unit == "us" else 1e3)


@dataclass
class Recorded:
    """A run with its figures, and the units of work that it finished."""

    run: Run
    figures: list[Figure] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)


class Results:
    """A run, and the end of a file that every line is written to at once: what was measured outlives what follows."""

    def __init__(self, path: Path | None, run: Run) -> None:
        self.path, self.run = path, run
        self.figures: list[Figure] = []
        self._file: IO[str] | None = None

    def __enter__(self) -> Results:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        self._write({"run": asdict(self.run)})
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self._write({"figure": {name: value for name, value in asdict(figure).items() if value not in (None, "")}})

    def finish(self, unit: str) -> None:
        """Say that a unit of work need not be done again."""
        self._write({"finished": unit})

    def _write(self, record: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def _end_last_line(path: Path) -> None:
    """Drop what a run that was killed left of a line."""
    if path.exists():
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])


def load(path: Path) -> list[Recorded]:
    """Read a file of results.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not one.
    """
    recorded: list[Recorded] = []
    try:
        for line in filter(str.strip, path.read_text(encoding="utf-8").splitlines()):
            ((kind, content),) = json.loads(line).items()
            if kind == "run":
                recorded.append(Recorded(Run(**content)))
            elif kind == "figure":
                recorded[-1].figures.append(Figure(**content))
            elif kind == "finished":
                recorded[-1].finished.add(content)
            else:
                raise KeyError(kind)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is no file of results") from error
    if not recorded:
        raise ValueError(f"{path} is no file of results")
    return recorded


def latest(recorded: list[Recorded]) -> dict[Figure, Run]:
    """The last figure of each subject that has a value, or else a problem, with its run."""
    found: dict[tuple[Any, ...], tuple[Figure, Run]] = {}
    for one in recorded:
        for figure in one.figures:
            before = found.get(figure.subject)
            if before is None or figure.value is not None or before[0].value is None:
                found[figure.subject] = (figure, one.run)
    return dict(found.values())


def finished_units(path: Path, run: Run) -> set[str]:
    """What need not be measured again in a run, because one under the same circumstances has done it."""
    if not path.exists():
        return set()
    return set().union(*(one.finished for one in load(path) if run.continues(one.run)))


def promote(version: str, folder: Path = FOLDER) -> Path:
    """Move what is staged to a version; the folder it went to.

    Raises:
        ValueError: no version, one that is there already, or nothing staged.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+([a-z0-9.]+)?", version):
        raise ValueError(f"VERSION: expected a version such as 0.1.0, got {version!r}")
    staged, target = folder / STAGED, folder / version
    if target.exists():
        raise ValueError(f"VERSION: {target} is there already, and results of a version stay as they are")
    if not any(staged.rglob("*.jsonl")):
        raise ValueError(f"VERSION: nothing is staged in {staged}")
    return staged.rename(target)


def slug(words: str) -> str:
    """A device's name as that of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")


def describe_run(
    algorithm: str,
    suite: str,
    device: torch.device,
    *,
    copy_bandwidth: float | None = None,
    empty_launch: float | None = None,
) -> Run:
    """The present machine, software and commit.

    RL_TRITON_COMMIT names the commit of a copied tree, of which git here knows nothing: not even whether it differs.
    """
    named = os.environ.get("RL_TRITON_COMMIT")
    status = None
    if not named:
        status = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!benchmarks/results")
    return Run(
        algorithm=algorithm,
        suite=suite,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        driver=_driver() if device.type == "cuda" else None,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        triton=_triton_version(),
        python=platform.python_version(),
        commit=named or _output("git", "-C", str(ROOT), "rev-parse", "--verify", "-q", "HEAD"),
        dirty=None if status is None else bool(status),
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        copy_bandwidth=copy_bandwidth,
        empty_launch=empty_launch,
        sources=digest_of_sources(),
    )


@functools.cache
def digest_of_sources() -> str:
    """Changes with any line of the packages and of the benchmarks, whether git knows the tree or not."""
    digest = hashlib.sha256()
    for pattern in ("packages/*/src/**/*.py", "shared/*/src/**/*.py", "benchmarks/**/*.py"):
        for file in sorted(ROOT.glob(pattern)):
            if "tests" not in file.relative_to(ROOT).parts:
                digest.update(file.relative_to(ROOT).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _triton_version() -> str | None:
    try:
        import triton
    except ModuleNotFoundError:
        return None
    return str(triton.__version__)


def _driver() -> str | None:
    versions = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return versions.splitlines()[0].strip() if versions else None


def _output(*command: str) -> str | None:
    """What a command prints, or None where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
