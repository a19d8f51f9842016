"""What fails costs its own figure and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.results import Figure

LONGEST_MESSAGE = 200


def guarded(blank: Figure, fill: Callable[[Figure], Figure]) -> Figure:
    """The blank filled in, or with the problem that came up."""
    try:
        return fill(blank)
    except Exception as error:  # whatever it is, the other figures are still wanted
        first_line = (str(error).strip() or "no message").splitlines()[0]
        return replace(blank, problem=f"{type(error).__name__}: {first_line}"[:LONGEST_MESSAGE])
