"""How far a run is: a bar with the time left where rich is installed and someone looks, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Counts units of work, and prints lines beside the count."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done, self._clock = total, 0, clock
        self._begin = self._last_line = self._unit_begin = clock()
        self.longest_unit = 0.0
        self._bar = _bar(total)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._begin

    def time_left(self) -> float | None:
        """Seconds, as long as units take what they took so far."""
        return self.elapsed / self.done * (self.total - self.done) if self.done else None

    def start(self, unit: str) -> None:
        self._unit_begin = self._clock()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=unit, refresh=True)
        elif self.done and self._clock() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = self._clock()
            left = self.time_left()
            assert left is not None
            self.show(f"[{self.done} of {self.total} done, about {words(left)} left] {unit}")

    def finish(self) -> None:
        self.done += 1
        self.longest_unit = max(self.longest_unit, self._clock() - self._unit_begin)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def show(self, *lines: str) -> None:
        """Print lines above the bar."""
        for line in lines:
            if self._bar is not None:
                self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, flush=True)


def words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _bar(total: int) -> Any:
    """rich's bar, or None."""
    if not sys.stdout.isatty():
        return None
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ModuleNotFoundError:
        return None
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    # A thread that draws the bar would share the interpreter with the calls that are timed.
    bar = Bar(*columns, transient=True, auto_refresh=False)
    bar.add_task("", total=total)
    return bar
