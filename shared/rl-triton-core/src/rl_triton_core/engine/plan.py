"""The plan of a launch: which strategy, which tile, how many warps, as a pure function of the problem."""

from __future__ import annotations

import math
from typing import NamedTuple

from rl_triton_core.engine import tiles
from rl_triton_core.engine.tiles import Bucket, Layouts, Options, Whole


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


def make_plan(
    rows: int,
    steps: int,
    *,
    contiguous: bool,
    unit: int,
    dense: bool,
    device: Device,
    outputs: int = 1,
    actions: int = 0,
    action_unit: int = 1,
) -> Plan:
    """Choose a plan.

    Args:
        rows: number of rows, at least 1.
        steps: length of a row, at least 1.
        contiguous: whether time is the contiguous axis (else rows are taken to be).
        unit: what the row length and all row strides are divisible by: 8, 4 or 1.
        dense: whether all rows follow each other in memory without a gap.
        device: the GPU.
        outputs: how many numbers are written for every step.
        actions: length of the last axis of tensors with a number for every action, 0 if there are none.
        action_unit: what that length and all other strides of these tensors are divisible by: 8, 4 or 1.
    """
    if actions:
        block = _action_block(actions, action_unit)
        options = _options_with_actions(actions, block, contiguous, unit)
        return _first_that_serves(rows, steps, options, False, device)._replace(actions=block)
    layouts = tiles.ONE_OUTPUT if outputs == 1 else tiles.TWO_OUTPUTS
    dense = dense and contiguous and unit != 8 and steps >= tiles.SHORT_ROW
    if dense:
        plans = [_dense_rows(rows, steps, b) for b in layouts.dense_whole if _touched(steps) <= b.size]
        if plans:
            filled = (plan for plan in plans if plan.rows_per_tile * steps >= tiles.FILLED * plan.steps * plan.lanes)
            return next(filled, plans[-1])
    return _first_that_serves(rows, steps, _options(layouts, contiguous, unit, dense), dense, device)


def _options(layouts: Layouts, contiguous: bool, unit: int, dense: bool) -> Options:
    if contiguous:
        return layouts.dense if dense else layouts.aligned if unit == 8 else layouts.unaligned
    return layouts.time_major


def _options_with_actions(actions: int, block: int, contiguous: bool, unit: int) -> Options:
    if block == tiles.FETCHED_BLOCK:
        return tiles.CONTIGUOUS_FETCHED_ACTIONS if contiguous else tiles.TIME_MAJOR_FETCHED_ACTIONS
    if not contiguous:
        return tiles.TIME_MAJOR_FEW_ACTIONS if actions <= tiles.FEW_ACTIONS else tiles.TIME_MAJOR_MANY_ACTIONS
    if actions <= tiles.FEW_ACTIONS:
        return tiles.CONTIGUOUS_FEW_ACTIONS if unit >= 4 else tiles.UNALIGNED_FEW_ACTIONS
    if actions <= tiles.SOME_ACTIONS:
        return tiles.CONTIGUOUS_SOME_ACTIONS if unit >= 4 else tiles.UNALIGNED_SOME_ACTIONS
    return tiles.CONTIGUOUS_MANY_ACTIONS


def _action_block(actions: int, unit: int) -> int:
    """The longest block that can be fetched ahead or is hardly ever empty, or else the one that is the least."""
    if actions <= tiles.ACTION_BLOCKS[-1]:
        return 1 << (actions - 1).bit_length()
    if actions >= tiles.FETCHED_BLOCK and unit >= 4:
        return tiles.FETCHED_BLOCK
    padded = {block: _ceiling(actions, block) * block for block in tiles.ACTION_BLOCKS}
    hardly_empty = (block for block in tiles.ACTION_BLOCKS if 8 * padded[block] <= 9 * actions)
    return next(hardly_empty, min(padded, key=padded.__getitem__))


def _first_that_serves(rows: int, steps: int, options: Options, dense: bool, device: Device) -> Plan:
    processors = device.multiprocessors
    for option in options.tiles:
        bucket = option.bucket
        if steps > option.longest:
            continue
        if isinstance(option, Whole):
            if steps <= bucket.size:
                return _whole_rows(rows, steps, bucket)
        elif steps <= option.always or _ceiling(rows, bucket.columns) * bucket.warps >= option.filling * processors:
            return _walked(rows, bucket, dense)
    return _chunked(rows, steps, options, dense)


def _whole_rows(rows: int, steps: int, bucket: Bucket) -> Plan:
    per_tile = bucket.lanes // _ceiling(steps, bucket.steps)
    programs = _ceiling(_ceiling(rows, bucket.columns), per_tile)
    return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, 1, 0, 0, False, per_tile, programs)


def _dense_rows(rows: int, steps: int, bucket: Bucket) -> Plan:
    """Whole rows again, which begin and end inside groups."""
    per_tile = bucket.size // steps
    if _touched(per_tile * steps) > bucket.size:
        per_tile -= 1
    # Rows that together fill whole groups spare the stores of parts; worth an eighth of the lanes at most.
    together = 8 // math.gcd(steps, 8)
    if 8 * (per_tile % together) <= per_tile:
        per_tile -= per_tile % together
    return Plan(bucket.steps, bucket.lanes, 1, bucket.warps, 1, 0, 0, True, per_tile, _ceiling(rows, per_tile))


def _touched(steps: int) -> int:
    """How many steps lie in the groups that `steps` dense steps touch, at most: they begin at a multiple of `steps`."""
    return _ceiling(steps + 8 - math.gcd(steps, 8), 8) * 8


def _walked(rows: int, bucket: Bucket, dense: bool) -> Plan:
    """Rows that one program each walks to the end."""
    programs = _ceiling(rows, bucket.columns)
    return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, 0, 0, 0, dense, 1, programs)


def _chunked(rows: int, steps: int, options: Options, dense: bool) -> Plan:
    """Rows split into chunks, each a tile of the first bucket that makes few of them, or else some of the last."""
    buckets, bounds, _ = next(chunks for chunks in options.chunks if rows <= chunks.most_rows)
    for bucket in buckets:
        groups = _ceiling(_touched(steps) if dense else steps, bucket.steps)
        if _ceiling(groups, bucket.lanes) <= tiles.FEW_CHUNKS:
            break
    walked = _ceiling(_ceiling(groups, bucket.lanes), bounds[-1])
    chunks = _ceiling(groups, bucket.lanes * walked)
    if chunks == 1:
        return _whole_rows(rows, steps, bucket)
    bound = next(bound for bound in bounds if chunks <= bound)
    programs = _ceiling(rows, bucket.columns)
    return Plan(bucket.steps, bucket.lanes, bucket.columns, bucket.warps, walked, chunks, bound, dense, 1, programs)


def _ceiling(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
