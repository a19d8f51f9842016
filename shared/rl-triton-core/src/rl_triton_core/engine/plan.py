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
        actions: how many actions a block has, where there are any.
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
    actions: int = 1


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
# 128 steps there: 128 rows of 4096 steps are then 256 programs. With 256 steps they are half as many and take 1.6 times
# as long, though the summaries take 0.8 % of a float32 output's memory in place of 1.6 %.
CHUNK_TIME_MAJOR = (Bucket(16, 16, 8),)


class Buckets(NamedTuple):
    """The tiles of a call with actions: for whole rows, and for a walk along longer ones.

    A walk takes the first that fills the device. Where none does, rows of many tiles are split into chunks, each a tile
    of the last for whole rows; shorter ones are walked by the last.
    """

    whole: tuple[Bucket, ...]
    walked: tuple[Bucket, ...]


# With a number for every action, what a step reads outweighs the scan, and a thread can hold the actions of few steps:
# of four where one vector access loads them, else of one. Chosen by registers and bytes in flight; no sweep yet.
FEW_ACTIONS = 4
CONTIGUOUS_FEW_ACTIONS = Buckets(
    whole=(Bucket(64, 1, 2, 4), Bucket(128, 1, 4, 4)),
    walked=(Bucket(128, 1, 4, 4), Bucket(256, 1, 8, 4), Bucket(512, 1, 16, 4)),
)
CONTIGUOUS_MANY_ACTIONS = Buckets(
    whole=(Bucket(128, 1, 4, 1), Bucket(256, 1, 8, 1)),
    walked=(Bucket(128, 1, 4, 1), Bucket(256, 1, 8, 1), Bucket(512, 1, 16, 1)),
)
TIME_MAJOR_FEW_ACTIONS = Buckets(whole=(Bucket(8, 16, 4, 4), Bucket(16, 16, 8, 4)), walked=(Bucket(16, 16, 8, 4),))
TIME_MAJOR_MANY_ACTIONS = Buckets(whole=(Bucket(16, 16, 8, 1),), walked=(Bucket(16, 16, 8, 1),))
# Up to so many tiles, two launches that read everything twice gain nothing, and are two more kernels.
TILES_NEVER_CHUNKED = 8
# Blocks of actions, where there are more than the last.
ACTION_BLOCKS = (16, 8)

CHUNK_BOUNDS = (32, 128, 512)
MOST_CHUNKS = CHUNK_BOUNDS[-1]
CHUNKS_BEFORE_WIDER_TILES = 256


def make_plan(
    rows: int, steps: int, *, contiguous: bool, unit: int, dense: bool, device: Device, actions: int = 0
) -> Plan:
    """Choose a plan.

    Args:
        rows: number of rows, at least 1.
        steps: length of a row, at least 1.
        contiguous: whether time is the contiguous axis (else rows are taken to be).
        unit: what the row length and all row strides are divisible by: 8, 4 or 1.
        dense: whether all rows follow each other in memory without a gap.
        device: the GPU.
        actions: length of the last axis of tensors with a number for every action, 0 if there are none.
    """
    if actions:
        plan = _with_actions(rows, steps, actions, contiguous=contiguous, device=device)
        return plan._replace(actions=_action_block(actions))
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


def _with_actions(rows: int, steps: int, actions: int, *, contiguous: bool, device: Device) -> Plan:
    """A plan where a step reads a number for every action, from several tensors."""
    if contiguous:
        buckets = CONTIGUOUS_FEW_ACTIONS if actions <= FEW_ACTIONS else CONTIGUOUS_MANY_ACTIONS
    else:
        buckets = TIME_MAJOR_FEW_ACTIONS if actions <= FEW_ACTIONS else TIME_MAJOR_MANY_ACTIONS
    for bucket in buckets.whole:
        if steps <= bucket.steps * bucket.lanes:
            return _whole_rows(rows, steps, bucket)
    chunk = buckets.whole[-1]
    for bucket in buckets.walked:
        programs = _ceiling(rows, bucket.columns)
        # One program a multiprocessor, or nearly so, fills it with 16 warps: better than reading everything twice.
        fills = programs * bucket.warps >= (8 if bucket.warps < 16 else 12) * device.multiprocessors
        if fills or (bucket is buckets.walked[-1] and steps <= TILES_NEVER_CHUNKED * chunk.lanes * chunk.steps):
            return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, 0, 0, 0, False, 1, programs)
    # Sixteen rows at once fill the device with fewer chunks.
    return _chunked(rows, steps, (chunk,), False, MOST_CHUNKS if contiguous else CHUNK_BOUNDS[1])


def _action_block(actions: int) -> int:
    """The longest block that is hardly ever empty, or else the one that is the least."""
    if actions <= ACTION_BLOCKS[-1]:
        return 1 << (actions - 1).bit_length()
    padded = {block: _ceiling(actions, block) * block for block in ACTION_BLOCKS}
    return next(
        (block for block in ACTION_BLOCKS if 8 * padded[block] <= 9 * actions), min(padded, key=padded.__getitem__)
    )


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


def _chunked(rows: int, steps: int, buckets: tuple[Bucket, ...], dense: bool, most: int = MOST_CHUNKS) -> Plan:
    bucket = buckets[0]
    groups = _ceiling(_touched(steps) if dense else steps, bucket.steps)
    if _ceiling(groups, bucket.lanes) > CHUNKS_BEFORE_WIDER_TILES:
        bucket = buckets[-1]
    tiles = _ceiling(_ceiling(groups, bucket.lanes), most)
    chunks = _ceiling(groups, bucket.lanes * tiles)
    bound = next(bound for bound in CHUNK_BOUNDS if chunks <= bound)
    programs = _ceiling(rows, bucket.columns)
    return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, tiles, chunks, bound, dense, 1, programs)


def _ceiling(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
