"""Figures and the run that they come from, as JSON lines: the run first, then one figure a line."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import torch

from benchmarks.registry import TIMES, Configuration

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results"
SLACK = 0.05


@dataclass(frozen=True)
class Run:
    """Where and when figures were measured.

    Attributes:
        copy_bandwidth: bytes a second, read and written, of the run's own copy kernel.
        empty_launch: microseconds on the device of a kernel that does nothing.
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

    @property
    def label(self) -> str:
        """The name of its file: algorithm, suite where it is not the full one, and device."""
        words = (self.algorithm, "" if self.suite == "full" else self.suite, self.device.lower())
        return "-".join(word for word in "-".join(words).replace(" ", "-").split("-") if word)


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

    @classmethod
    def of(cls, measure: str, configuration: Configuration, unit: str) -> Figure:
        """A figure that has yet to be measured."""
        c = configuration
        return cls(measure=measure, rows=c.rows, steps=c.steps, layout=c.layout, inputs=c.inputs, unit=unit)

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


class Results:
    """A file that every line is written to at once, so that what was measured outlives what follows."""

    def __init__(self, folder: Path | None, run: Run) -> None:
        self.path = None if folder is None else folder / f"{run.label}.jsonl"
        self.run = run
        self.figures: list[Figure] = []
        self._file: IO[str] | None = None

    def __enter__(self) -> Results:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
        self._write({"run": asdict(self.run)})
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self._write({"figure": {name: value for name, value in asdict(figure).items() if value not in (None, "")}})

    def _write(self, record: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def load(path: Path) -> tuple[Run, list[Figure]]:
    """Read a file of results.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not one.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        first, *others = [json.loads(line) for line in lines if line.strip()]
        return Run(**first["run"]), [Figure(**record["figure"]) for record in others]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of results") from error


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
    )


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
