"""A gate for the measurements themselves: a larger problem takes no less time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.registry import TIMES
from benchmarks.results import Figure

# A larger problem may be this much faster: tiles suit one shape better than another.
TOLERANCE = 0.10


def faster_though_larger(figures: Sequence[Figure]) -> list[str]:
    """A sentence for every figure that is below that of a smaller problem, by more than spread and tolerance.

    Problems are of one kind: the same implementation, measure, layout and inputs. One is larger where it has more steps
    or rows, and less of neither.
    """
    found = []
    timed = [figure for figure in figures if figure.measure in TIMES and figure.value is not None]
    for small, large in itertools.permutations(timed, 2):
        if _kind(small) == _kind(large) and _is_within(small, large) and _is_faster(large, small):
            found.append(
                f"Suspicious: {large.implementation}, {large.measure}, {large.layout}, {large.inputs}: "
                f"{large.rows} x {large.steps} took {large.value:.3g} {large.unit}, and {small.rows} x {small.steps} "
                f"{small.value:.3g}"
            )
    return found


def _kind(figure: Figure) -> tuple[str, ...]:
    return (figure.implementation, figure.measure, figure.layout, figure.inputs)


def _is_within(small: Figure, large: Figure) -> bool:
    return (
        small.rows <= large.rows
        and small.steps <= large.steps
        and (small.rows, small.steps) != (large.rows, large.steps)
    )


def _is_faster(one: Figure, other: Figure) -> bool:
    assert one.value is not None
    assert other.value is not None
    ceiling = one.value if one.high is None else one.high
    floor = other.value if other.low is None else other.low
    return one.value < other.value * (1 - TOLERANCE) and ceiling < floor
