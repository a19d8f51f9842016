"""The plan of a launch: which strategy, which tile, how many warps, as a pure function of the problem.

The tiles are the winners of a sweep on an H200 with GAE, or within a few percent of them where one tile serves more
shapes. What the sweep says:

* Eight steps a lane: a scan over lanes costs the same however long the groups are, and a lane's loads become 128-bit
  accesses for 16-bit types as well. Four cost up to 30 % more, except for short time-major rows, which eight pad.
* One set of lanes for many lengths: rows lie end to end over the lanes, so a bucket serves every length up to its size.
* Where rows follow each other without a gap, groups are counted in memory: any length is loaded as the common one is.
* As few warps a program as a row fits: more programs are in flight while one waits for its loads.
* Chunks only where rows alone do not fill the device: they read the inputs twice, the second time mostly from L2.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Device(NamedTuple):
    """What a plan needs to know of a GPU."""

    multiprocessors: int
    warp_size: int


class Plan(NamedTuple):
    """One launch's strategy.

    Attributes:
        steps: consecutive steps that a lane owns.
        lanes: lanes along time in a tile.
        columns: adjacent rows that each lane owns (1 where time is contiguous).
        warps: warps of a program.
        tiles: tiles that a program walks; 1 without chunks means whole rows per tile, 0 as many as a row needs.
        chunks: chunks of a row, 0 if it is not split.
        most_chunks: the bound on them that is compiled in: one kernel serves many lengths.
        dense: whether rows share groups: they follow each other in memory without a gap, and start anywhere.
        rows_per_tile: groups of `columns` rows laid end to end over a tile's lanes, or over the tiles of a walk.
        programs: programs along the rows.
    """

    steps: int
    lanes: int
    columns: int
    warps: int
    tiles: int
    chunks: int
    most_chunks: int
    dense: bool
    rows_per_tile: int
    programs: int


class Bucket(NamedTuple):
    """A tile for every row of up to `lanes` groups of `steps` steps."""

    lanes: int
    columns: int
    warps: int
    steps: int = 8


# Rows of fewer steps than a vector access holds are walked across, whatever their layout.
SHORT_ROW = 8
# Time contiguous and a multiple of eight: the common rollout. One warp for up to 256 steps: its scan needs no barrier,
# and a program ends when its own loads do (10 % less than two warps at 128 steps).
ALIGNED = (Bucket(32, 1, 1), Bucket(128, 1, 4), Bucket(512, 1, 8))
# Other lengths, where rows follow each other without a gap. Two buckets, not three: with a walk for the few lengths up
# to 4096 that touch more groups than a tile has, eight kernels serve every length up to there.
DENSE = (Bucket(128, 1, 4), Bucket(512, 1, 8))
# Idle lanes cost as much as others: the larger tile where rows fill less of the smaller one than this.
FILLED = 0.75
# Whatever else (rows with gaps) loads in narrower pieces; one bucket keeps the number of kernels small.
UNALIGNED = (Bucket(512, 1, 8),)
# Rows contiguous: sixteen adjacent rows fill a memory sector of every dtype, and the scan runs across warps.
TIME_MAJOR = (Bucket(4, 32, 4, 1), Bucket(8, 16, 4, 4), Bucket(16, 16, 8), Bucket(32, 16, 16), Bucket(64, 16, 16))
# Rows too long for any of these, dense or not, walked by one program each: the fewer rows, the wider the tile.
LONG_MANY_ROWS = Bucket(128, 1, 2)
LONG_FEW_ROWS = Bucket(256, 1, 4)
LONG_TIME_MAJOR = Bucket(16, 16, 8)
# The few dense lengths up to here are walked however few rows there are: chunks would be two more kernels.
LONGEST_UNCHUNKED = 4096
# Chunks of 1024 steps keep every multiprocessor busy; 2048 where there would otherwise be too many summaries to read.
CHUNK_CONTIGUOUS = (Bucket(128, 1, 2), Bucket(256, 1, 4))
CHUNK_TIME_MAJOR = (Bucket(16, 16, 8),)
# 256 steps there: the summaries of 128 take more than 1 % of the output's memory. From 2**19 steps in all on that still
# fills an H200; for fewer as well, or some numbers of rows would need two kernels more.
CHUNK_TILES_TIME_MAJOR = 2

CHUNK_BOUNDS = (32, 128, 512)
MOST_CHUNKS = CHUNK_BOUNDS[-1]
CHUNKS_BEFORE_WIDER_TILES = 256


def make_plan(rows: int, steps: int, *, contiguous: bool, unit: int, dense: bool, device: Device) -> Plan:
    """Choose a plan.

    Args:
        rows: number of rows, at least 1.
        steps: length of a row, at least 1.
        contiguous: whether time is the contiguous axis (else rows are taken to be).
        unit: what the row length and all row strides are divisible by: 8, 4 or 1.
        dense: whether all rows follow each other in memory without a gap.
        device: the GPU.
    """
    dense = dense and contiguous and unit != 8 and steps >= SHORT_ROW
    if dense:
        plans = [_dense_rows(rows, steps, b) for b in DENSE if _touched(steps) <= b.steps * b.lanes]
        if plans:
            return next((p for p in plans if p.rows_per_tile * steps >= FILLED * p.steps * p.lanes), plans[-1])
    else:
        buckets = (ALIGNED if unit == 8 else UNALIGNED) if contiguous else TIME_MAJOR
        for bucket in buckets:
            if (steps == 1 or bucket.steps > 1) and steps <= bucket.steps * bucket.lanes:
                return _whole_rows(rows, steps, bucket)
    long_row = LONG_TIME_MAJOR
    if contiguous:
        long_row = LONG_MANY_ROWS if rows >= 4 * device.multiprocessors else LONG_FEW_ROWS
    programs = _ceiling(rows, long_row.columns)
    if programs * long_row.warps >= 8 * device.multiprocessors or (contiguous and steps <= LONGEST_UNCHUNKED):
        return Plan(long_row.steps, long_row.lanes, long_row.columns, long_row.warps, 0, 0, 0, dense, 1, programs)
    return _chunked(rows, steps, CHUNK_CONTIGUOUS if contiguous else CHUNK_TIME_MAJOR, dense)


def _whole_rows(rows: int, steps: int, bucket: Bucket) -> Plan:
    per_tile = bucket.lanes // _ceiling(steps, bucket.steps)
    programs = _ceiling(_ceiling(rows, bucket.columns), per_tile)
    return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, 1, 0, 0, False, per_tile, programs)


def _dense_rows(rows: int, steps: int, bucket: Bucket) -> Plan:
    """Whole rows again, which begin and end inside groups."""
    size = bucket.steps * bucket.lanes
    per_tile = size // steps
    if _touched(per_tile * steps) > size:
        per_tile -= 1
    # Rows that together fill whole groups spare the stores of parts; worth an eighth of the lanes at most.
    together = 8 // math.gcd(steps, 8)
    if 8 * (per_tile % together) <= per_tile:
        per_tile -= per_tile % together
    return Plan(bucket.steps, bucket.lanes, 1, bucket.warps, 1, 0, 0, True, per_tile, _ceiling(rows, per_tile))


def _touched(steps: int) -> int:
    """How many steps lie in the groups that `steps` dense steps touch, at most: they begin at a multiple of `steps`."""
    return _ceiling(steps + 8 - math.gcd(steps, 8), 8) * 8


def _chunked(rows: int, steps: int, buckets: tuple[Bucket, ...], dense: bool) -> Plan:
    bucket = buckets[0]
    groups = _ceiling(_touched(steps) if dense else steps, bucket.steps)
    if _ceiling(groups, bucket.lanes) > CHUNKS_BEFORE_WIDER_TILES:
        bucket = buckets[-1]
    fewest = CHUNK_TILES_TIME_MAJOR if bucket.columns > 1 else 1
    tiles = max(_ceiling(_ceiling(groups, bucket.lanes), MOST_CHUNKS), fewest)
    chunks = _ceiling(groups, bucket.lanes * tiles)
    bound = next(bound for bound in CHUNK_BOUNDS if chunks <= bound)
    programs = _ceiling(rows, bucket.columns)
    return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, tiles, chunks, bound, dense, 1, programs)


def _ceiling(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
