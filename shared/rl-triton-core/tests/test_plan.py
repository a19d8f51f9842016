"""The plan: every step of every row is visited once, by tiles a GPU can run, with few kernels for many lengths."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from rl_triton_core import segmented_scan
from rl_triton_core.engine import launcher, prepared, tiles
from rl_triton_core.engine.plan import Device, Plan, make_plan

H200 = Device(multiprocessors=132, warp_size=32)
SMALL = Device(multiprocessors=20, warp_size=32)

ROWS = (1, 3, 8, 33, 127, 528, 4096, 2**22)
SHORT = (1, 2, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 128, 129, 512, 513, 1000, 1016, 2048, 4095, 4096, 4097)
STEPS = (*SHORT, 2**17, 2**20 + 1)


def layouts(rows: int, steps: int) -> list[dict[str, Any]]:
    """Every way that such rows can lie in memory, as `make_plan` hears of it."""
    units = [unit for unit in (8, 4, 1) if steps % unit == 0]
    found = [{"contiguous": False, "unit": 1, "dense": False}]
    if steps >= tiles.SHORT_ROW:
        found += [{"contiguous": True, "unit": unit, "dense": False} for unit in units]
        found += [{"contiguous": True, "unit": units[0], "dense": True}]
    return [layout | {"outputs": outputs} for layout in found for outputs in (1, 2)]


def problems(rows: tuple[int, ...] = ROWS, steps: tuple[int, ...] = STEPS) -> list[tuple[int, int, dict[str, Any]]]:
    return [(n, t, layout) for n, t in itertools.product(rows, steps) for layout in layouts(n, t)]


def ceiling(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def visits(found: Plan, rows: int, steps: int) -> torch.Tensor:
    """How often each (row, step) is visited by the programs and lanes of a plan."""
    count = torch.zeros(rows * steps, dtype=torch.long)
    column, offset = torch.arange(found.columns), torch.arange(found.steps)
    whole_rows = found.tiles == 1 and not found.chunks
    for program in range(found.programs):
        groups = ceiling(steps, found.steps)
        if found.dense:
            begin = program * found.rows_per_tile * steps
            end = min(begin + found.rows_per_tile * steps, rows * steps)
            groups = ceiling(end, found.steps) - begin // found.steps
        walked = found.lanes if whole_rows else (found.tiles or ceiling(groups, found.lanes)) * found.lanes
        position = torch.arange(walked * max(found.chunks, 1))
        if found.dense:
            index = (begin // found.steps + position[position < groups])[:, None] * found.steps + offset
            count += torch.bincount(index[(index >= begin) & (index < end)], minlength=rows * steps)
            continue
        slot, group = (position // groups, position % groups) if whole_rows else (position * 0, position)
        row = ((program * found.rows_per_tile + slot) * found.columns)[:, None, None] + column[:, None]
        step = (group * found.steps)[:, None, None] + offset
        there = (row < rows) & (step < steps) & ((slot < found.rows_per_tile) & (group < groups))[:, None, None]
        count += torch.bincount((row * steps + step)[there], minlength=rows * steps)
    return count.view(rows, steps)


@pytest.mark.parametrize("device", [H200, SMALL], ids=["large", "small"])
def test_every_step_is_visited_once(device: Device) -> None:
    for rows, steps, layout in problems((1, 3, 40), SHORT):
        found = make_plan(rows, steps, **layout, device=device)
        assert (visits(found, rows, steps) == 1).all(), (rows, steps, layout, found)


def test_programs_and_chunks_cover_whatever_is_large() -> None:
    for rows, steps, layout in problems(steps=(*STEPS, 2**26 + 3, 2**31 - 1, 2**31, 2**31 + 8)):
        found = make_plan(rows, steps, **layout, device=H200)
        per_program = found.rows_per_tile * found.columns
        assert (found.programs - 1) * per_program < rows <= found.programs * per_program, (rows, steps, layout, found)
        # A dense row may begin inside a group, as late as its length allows.
        before = 8 - math.gcd(found.rows_per_tile * steps, 8) if found.dense else 0
        if found.chunks:
            per_chunk = found.tiles * found.lanes * found.steps
            walked = before + steps
            assert (found.chunks - 1) * per_chunk < walked <= found.chunks * per_chunk, (rows, steps, layout, found)
        elif found.dense:
            assert steps >= found.steps == 8
            assert not found.tiles or before + found.rows_per_tile * steps <= found.lanes * found.steps
            assert found.tiles or found.rows_per_tile == 1
        elif found.tiles:
            assert found.tiles == 1
            assert found.rows_per_tile * ceiling(steps, found.steps) <= found.lanes


def test_tiles_are_what_a_gpu_can_run() -> None:
    for rows, steps, layout in problems(steps=(*STEPS, 2**31)):
        found = make_plan(rows, steps, **layout, device=H200)
        for size in (found.steps, found.lanes, found.columns, found.warps):
            assert size > 0, (rows, steps, layout, found)
            assert size & (size - 1) == 0, (rows, steps, layout, found)
        threads = found.warps * H200.warp_size
        assert threads <= min(1024, found.lanes * found.columns), (rows, steps, layout, found)
        assert found.programs < 2**31
        assert found.chunks < 2**16
        # Each lane holds a group of 8 steps or fewer: more would not stay in registers.
        assert found.steps in (1, 4, 8)
        assert found.columns == 1 or not layout["contiguous"]


def test_actions_have_tiles_of_few_steps() -> None:
    for rows, steps, layout in problems(steps=(*STEPS, 2**31)):
        for actions, unit in ((1, 1), (4, 4), (6, 2), (18, 2), (33, 1), (128, 8), (1000, 8)):
            layout |= {"dense": False, "action_unit": unit}
            found = make_plan(rows, steps, **layout, device=H200, actions=actions)
            threads = found.warps * H200.warp_size
            assert threads <= min(512, found.lanes * found.columns), (rows, steps, layout, found)
            # What a thread holds of one tensor in a block of actions, in its registers or fetched ahead for it.
            fetched = found.actions == tiles.FETCHED_BLOCK
            assert fetched == (actions >= 32 and unit >= 4)
            assert found.lanes * found.columns * found.actions // threads <= (32 if fetched else 16)
            # Two blocks ahead of up to three tensors fit the shared memory of any GPU that fetches them.
            assert not fetched or 6 * 4 * found.lanes * found.columns * found.actions <= 96 * 1024
            assert found.steps in ((1, 4) if actions <= 8 else (1,))
            assert not found.dense
            per_program = found.rows_per_tile * found.columns
            assert (found.programs - 1) * per_program < rows <= found.programs * per_program
            if found.chunks:
                per_chunk = found.tiles * found.lanes * found.steps
                assert (found.chunks - 1) * per_chunk < steps <= found.chunks * per_chunk
                assert steps > 128
                assert found.chunks <= 512
            if rows <= 3 and steps <= 1016:
                assert (visits(found, rows, steps) == 1).all(), (rows, steps, layout, found)


@pytest.mark.parametrize(
    ("actions", "unit", "block"),
    [
        *((1, 1, 1), (2, 2, 2), (3, 1, 4), (8, 8, 8), (9, 1, 16), (16, 8, 16), (18, 2, 8), (31, 1, 16), (33, 1, 8)),
        *((1000, 8, 32), (1000, 1, 16), (36, 4, 32), (34, 2, 8)),
    ],
)
def test_blocks_of_actions_are_hardly_ever_empty_or_are_fetched_ahead(actions: int, unit: int, block: int) -> None:
    found = make_plan(64, 128, contiguous=True, unit=8, dense=False, device=H200, actions=actions, action_unit=unit)
    assert found.actions == block


def test_chunks_are_for_few_long_rows() -> None:
    for rows, steps, layout in problems(steps=(*STEPS, 2**31)):
        found = make_plan(rows, steps, **layout, device=H200)
        assert found.chunks != 1  # one chunk would be a row that is not split, at the price of a launch
        assert found.chunks <= 512
        if found.chunks:
            assert steps > 512
            assert found.programs < 8 * H200.multiprocessors
            # Either there is enough to do for every multiprocessor, or chunks are as short as they get.
            shortest = found.tiles * found.lanes * found.steps <= 1024
            assert shortest or found.programs * found.chunks >= H200.multiprocessors


def test_dense_rows_are_walked_as_their_neighbours_are() -> None:
    """Whatever its length, a row without gaps costs what one of a multiple of eight steps costs."""
    for rows, steps in itertools.product(ROWS, (4105, 5001, 8999, 100_001, 2**20 + 9, 2**26 + 3)):
        odd = make_plan(rows, steps, contiguous=True, unit=1, dense=True, device=H200)
        even = make_plan(rows, steps + 8 - steps % 8, contiguous=True, unit=8, dense=True, device=H200)
        assert odd.dense
        assert odd._replace(dense=False) == even, (rows, steps)


def test_dense_rows_fill_their_tiles() -> None:
    for steps in (*range(9, 1360), *range(3073, 4089)):
        if steps % 8:
            found = make_plan(4096, steps, contiguous=True, unit=1, dense=True, device=H200)
            assert found.rows_per_tile * steps >= 0.74 * found.lanes * found.steps, (steps, found)


def test_lane_to_row_division_is_exact_in_float32() -> None:
    """A kernel divides lanes (or offsets in a tile) by the length of a row by multiplying with a float32 reciprocal."""
    for largest in (512, 4096):
        offset = torch.arange(largest, dtype=torch.float32) + 0.5
        for length in range(1, largest + 1):
            quotient = (offset * torch.tensor(1.0 / length, dtype=torch.float32)).int()
            assert torch.equal(quotient, torch.arange(largest, dtype=torch.int32) // length), (largest, length)


@pytest.mark.parametrize("rows", [1, 63, 512, 2999, 4096])
@pytest.mark.parametrize("outputs", [1, 2])
def test_few_tiles_serve_all_lengths(rows: int, outputs: int) -> None:
    """At most eight tiles for any choice of lengths from 1 to 4096, whether steps follow each other or rows do."""
    dense, time_major = set(), set()
    for steps in range(1, 4097):
        unit = next(unit for unit in (8, 4, 1) if steps % unit == 0)
        contiguous = steps >= tiles.SHORT_ROW
        for layout, found in (
            ({"contiguous": contiguous, "unit": unit, "dense": True}, dense),
            ({"contiguous": False, "unit": 1, "dense": False}, time_major),
        ):
            plan = make_plan(rows, steps, **layout, device=H200, outputs=outputs)
            found.add((plan.steps, plan.lanes, plan.columns, plan.warps, plan.tiles, plan.most_chunks, plan.dense))
    assert len(dense) <= 8
    assert len(time_major) <= 8


@pytest.mark.parametrize("layout", ["batch first", "time first"])
@pytest.mark.parametrize("rows", [1, 63, 64, 2999, 4096])
def test_few_kernels_serve_all_lengths(monkeypatch: pytest.MonkeyPatch, layout: str, rows: int) -> None:
    """At most eight kernels for any choice of lengths from 1 to 4096."""
    pytest.importorskip("triton")
    from rl_triton_core.engine import kernels
    from rl_triton_core.testing.compile_only import standing_in

    monkeypatch.setattr(launcher, "_device", lambda device: H200)
    monkeypatch.setattr(launcher, "DIRECT_LAUNCH", False)
    monkeypatch.setattr(prepared, "kernel_serves", lambda *arguments: True)
    first_needed_at: dict[str, int] = {}

    def instead_of_compiling(key: Any, *rest: Any, **more: Any) -> None:
        first_needed_at.setdefault(str(key), steps)

    # The neighbourhood of every bucket's size, and every residue elsewhere.
    lengths = {t for centre in range(0, 4097, 256) for t in range(centre - 9, centre + 10)} | set(range(1, 4097, 13))
    with standing_in("cuda", 90):
        monkeypatch.setattr(kernels.scan, "_do_compile", instead_of_compiling)
        for steps in sorted(lengths & set(range(1, 4097))):
            shape = (steps, rows) if layout == "time first" else (rows, steps)
            inputs, resets = torch.empty(shape, device="meta"), torch.empty(shape, dtype=torch.bool, device="meta")
            segmented_scan(inputs, inputs, resets=resets, time_dim=0 if layout == "time first" else 1)
    assert 0 < len(first_needed_at) <= 8, f"one more kernel at each of {sorted(first_needed_at.values())}"
