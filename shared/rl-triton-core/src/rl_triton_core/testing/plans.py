"""Plans that a problem small enough for the interpreter never gets by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest import mock

from rl_triton_core.engine import launcher, plan, tiles
from rl_triton_core.engine.plan import Plan


def whole_rows(rows: int, steps: int, columns: int) -> Plan:
    """Rows side by side in a tile of up to 64 steps."""
    return plan._whole_rows(rows, steps, tiles.Bucket(8, columns, 1))


def walked(rows: int, steps: int, columns: int) -> Plan:
    """Tiles of 16 steps, one after the other."""
    return Plan(8, 2, columns, 1, 0, 0, 0, False, 1, plan._ceiling(rows, columns))


def chunked(rows: int, steps: int, columns: int, tiles: int = 1) -> Plan:
    """Chunks of 16 steps, at most 64 steps in all."""
    chunks = plan._ceiling(steps, 16 * tiles)
    return Plan(8, 2, columns, 1, tiles, chunks, 4, False, 1, plan._ceiling(rows, columns))


def chunks_of_two_tiles(rows: int, steps: int, columns: int) -> Plan:
    """Chunks of 32 steps, each walked in two tiles."""
    return chunked(rows, steps, columns, tiles=2)


def dense_whole_rows(rows: int, steps: int, columns: int) -> Plan:
    return plan._dense_rows(rows, steps, tiles.Bucket(8, columns, 1))


def dense_walked(rows: int, steps: int, columns: int) -> Plan:
    return walked(rows, steps, columns)._replace(dense=True)


def dense_chunked(rows: int, steps: int, columns: int, tiles: int = 1) -> Plan:
    return chunked(rows, plan._touched(steps), columns, tiles)._replace(dense=True)


def dense_chunks_of_two_tiles(rows: int, steps: int, columns: int) -> Plan:
    return dense_chunked(rows, steps, columns, tiles=2)


Strategies: TypeAlias = dict[str, Callable[[int, int, int], Plan]]

STRATEGIES: Strategies = {
    "whole rows": whole_rows,
    "walked": walked,
    "chunked": chunked,
    "chunks of two tiles": chunks_of_two_tiles,
}
# The same for rows that follow each other in memory without a gap, and begin anywhere.
DENSE_STRATEGIES: Strategies = {
    "dense, whole rows": dense_whole_rows,
    "dense, walked": dense_walked,
    "dense, chunked": dense_chunked,
    "dense, chunks of two tiles": dense_chunks_of_two_tiles,
}


@contextmanager
def forced_plan(strategy: str) -> Iterator[None]:
    """Give every call inside the block a plan of one of those; for the interpreter, where no call is remembered."""

    def make_plan(rows: int, steps: int, *, contiguous: bool, **_: Any) -> Plan:
        return (STRATEGIES | DENSE_STRATEGIES)[strategy](rows, steps, 1 if contiguous else 4)

    with mock.patch.object(launcher, "make_plan", make_plan):
        yield
