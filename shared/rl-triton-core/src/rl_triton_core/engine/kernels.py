"""The scan kernel: one generic body for every algorithm, layout, direction and strategy.

A row is cut into groups of STEPS consecutive steps, counted from its open end (the last step for backward recursions).
A lane loads a group with vector accesses where time is contiguous, and with coalesced ones where rows are; it folds the
group's maps into one, takes part in a *forward* scan over the lanes, finishes its steps in registers from the state
that the scan delivered, and stores once.

Rows are laid end to end over the lanes, as many whole ones as fit. Nothing comes in at the open end of a row, so a
cut there keeps them apart, and one compiled kernel serves every row length up to STEPS * LANES. A longer row is walked
tile by tile, carrying the state. Where few rows are long, each is split into chunks: a first launch (SUMMARISE)
composes every chunk's map, and a second starts every chunk from the state that the summaries before it deliver. No
program waits for another, so the result is the same from run to run.

A call with a mask scans twice in every tile: first what each step finds behind those that are left out, then, with what
it has found in place of its neighbour, the recursion. Chunks then take three launches, the first for their marks.

Rows that follow each other in memory without a gap need not start at a group (DENSE). Groups then lie at multiples of
STEPS from the first step of the tensor, so that accesses stay whole vectors whatever the length of a row. A group in
which one program's rows end and another's begin is computed by both, from the same loads, and each stores its own steps
of it; whatever the state is on the other side of the cut between them, none of it comes across. Only the steps of a
group inside which the tensor itself ends are loaded one by one.

    slot        where a tensor is found: (its place among the pointers, its layout's among the strides, whether that has
                two batch axes, what it holds), or None where the call lacks it
    step        one number, flag or None (where the call lacks it) per field, in the order of the algorithm's fields;
                behind them what the algorithm derives from fields with a number for every action (WIDE)
    tile        [ROWS, LANES] where time is contiguous, [LANES, ROWS] where rows are: a lane owns ROWS adjacent rows
    map, state  tuples that only the functions handed over look into

Triton 3.6 does not return None from a function, not even inside a tuple; that is why the fields of a step are read in
the kernel's own body.
"""

import triton
import triton.language as tl

from rl_triton_core.engine.sequences_tile import begun, begun_in_all
from rl_triton_core.engine.transparent_tile import (
    CUT_OFF,
    TERMINATED,
    behind_each,
    compose_marks,
    is_open,
    last_of_group,
    mark,
    nearer,
    or_behind,
    own_flag,
    scan_marks,
    transparent,
)

# What a field holds; Triton 3.6 takes no strings in a tuple.
REAL = tl.constexpr(0)
FLAG = tl.constexpr(1)
ACTION = tl.constexpr(2)

# What a wide tensor has numbers of.
OF_ROW = tl.constexpr(0)
OF_STEP = tl.constexpr(1)
OF_SEQUENCE = tl.constexpr(2)

# What a launch writes: the outputs, or of every chunk its map, or the mark that its steps leave.
OUTPUT = tl.constexpr(0)
MAPS = tl.constexpr(1)
MARKS = tl.constexpr(2)


@triton.jit
def row_start(
    pointer,
    outer_strides,
    inner_strides,
    inner_sizes,
    rows,
    LAYOUT: tl.constexpr,
    NESTED: tl.constexpr,
    UNIT: tl.constexpr,
):
    """A tensor's pointer to the first step of every row.

    A row is an index over all batch axes. A tensor whose batch axes do not fold into one (NESTED) splits it into an
    outer and an inner index. An outer stride of None stands for adjacent rows. Others come as 2 * stride + 1, so that
    their values are never compiled in, and in multiples of UNIT, which tells the compiler what they are divisible by.
    """
    if NESTED:
        inner_size = inner_sizes[LAYOUT]
        outer_stride = outer_strides[LAYOUT] >> 1
        return pointer + ((rows // inner_size) * outer_stride + (rows % inner_size) * inner_strides[LAYOUT]) * UNIT
    elif outer_strides[LAYOUT] is not None:
        return pointer + rows * (outer_strides[LAYOUT] >> 1) * UNIT
    else:
        return pointer + rows


@triton.jit
def as_kind(value, KIND: tl.constexpr, NUMBER: tl.constexpr):
    if KIND == FLAG:
        return value != 0
    elif KIND == ACTION:
        return value.to(tl.int64)
    else:
        return value.to(NUMBER)


@triton.jit
def load_field(start, time_stride, KIND: tl.constexpr, t, mask, NUMBER: tl.constexpr):
    """One field at the steps t: a flag of any dtype (non-zero means set), an index or a number to accumulate with."""
    return as_kind(tl.load(start + t * time_stride, mask, other=0), KIND, NUMBER)


@triton.jit
def flag_behind(flag, row_flag, at_open_end):
    """A flag moved here from the step behind; at the open end it is the row's, or none."""
    if row_flag is not None:
        return tl.where(at_open_end, row_flag, flag)
    else:
        return flag & ~at_open_end


@triton.jit
def flags_behind(flags, beyond, row_flag, at_open_end, STEPS: tl.constexpr):
    """The same for the steps of groups, [rows, lanes, STEPS]; `beyond` is the flag of the step behind each group."""
    moved = join_steps(split_steps(flags, STEPS)[1:] + (beyond,), STEPS)
    return flag_behind(moved, row_flag[:, :, None] if row_flag is not None else None, at_open_end)


@triton.jit
def opens(
    t,
    open_end,
    n_steps,
    never,
    j: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    REVERSE: tl.constexpr,
    DENSE: tl.constexpr,
):
    """Whether step j of the groups that begin at t is the one at the open end of its row."""
    if DENSE:
        if REVERSE:
            return t + j == open_end
        else:
            return (t + j == 0) | (t + j == n_steps)
    elif REVERSE:
        return t + j == open_end if j == STEPS - 1 or not EVEN else never
    else:
        return t == open_end if j == 0 else never


@triton.jit
def steps_of_tiles(tile, n_tiles, n_groups, n_steps, STEPS: tl.constexpr, LANES: tl.constexpr, REVERSE: tl.constexpr):
    """The step before the first one of so many tiles, and the one behind their last, within the row."""
    first_group = tl.cast(tile, n_steps.dtype) * LANES
    n_tile_groups = tl.cast(n_tiles, n_steps.dtype) * LANES
    if REVERSE:
        first_group = n_groups - first_group - n_tile_groups
    first_t = first_group * STEPS
    return tl.maximum(first_t, 0) - 1, tl.minimum(first_t + n_tile_groups * STEPS, n_steps)


@triton.jit
def derive_at(
    step,
    at_open_end,
    mask,
    rows,
    t,
    pointers,
    outer_strides,
    inner_strides,
    inner_sizes,
    time_strides,
    action_strides,
    n_action_units,
    sequences,
    DERIVE: tl.constexpr,
    WIDE: tl.constexpr,
    N_WIDE: tl.constexpr,
    ACTIONS: tl.constexpr,
    NUMBER: tl.constexpr,
    INDEX: tl.constexpr,
    NEIGHBOUR: tl.constexpr,
):
    """What the algorithm derives at the steps t from fields with a number for every action.

    `sequences` are those that hold the steps, if they are packed.

    ACTIONS is how these are walked: in blocks of how many, whether one block does, whether the blocks end where the
    actions do, and the unit of their number and of the strides.
    """
    UNIT: tl.constexpr = ACTIONS[3]
    strides = [
        time_strides[WIDE[i][1]] * UNIT if WIDE[i] is not None and WIDE[i][3] != OF_ROW else None
        for i in (0, 1, 2, 3)[:N_WIDE]
    ]
    starts = [
        (
            row_start(
                pointers[WIDE[i][0]], outer_strides, inner_strides, inner_sizes, rows, WIDE[i][1], WIDE[i][2], UNIT
            )
            if WIDE[i] is not None
            else None
        )
        for i in (0, 1, 2, 3)[:N_WIDE]
    ]
    return DERIVE(
        step,
        at_open_end,
        mask,
        [
            (
                starts[i]
                if strides[i] is None
                else (
                    starts[i] + t * strides[i]
                    if WIDE[i][3] == OF_STEP
                    else (starts[i] + sequences * strides[i] if sequences is not None else starts[i])
                )
            )
            for i in (0, 1, 2, 3)[:N_WIDE]
        ],
        strides,
        [action_strides[WIDE[i][1]] if WIDE[i] is not None else None for i in (0, 1, 2, 3)[:N_WIDE]],
        n_action_units.to(INDEX) * UNIT,
        ACTIONS[0],
        ACTIONS[1],
        ACTIONS[2],
        NUMBER,
        NEIGHBOUR,
    )


@triton.jit
def number_from(scalar, NUMBER: tl.constexpr):
    """A number of the call. A Python float arrives as float32; three of them add up to any float64."""
    if NUMBER == tl.float64:
        return tl.cast(scalar[0], NUMBER) + tl.cast(scalar[1], NUMBER) + tl.cast(scalar[2], NUMBER)
    else:
        return tl.cast(scalar[0], NUMBER)


@triton.jit
def split_4(x):
    even, odd = tl.split(tl.reshape(x, [x.shape[0], x.shape[1], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def split_steps(x, STEPS: tl.constexpr):
    """[rows, lanes, STEPS] into its steps."""
    if STEPS == 1:
        return (tl.reshape(x, [x.shape[0], x.shape[1]]),)
    elif STEPS == 4:
        return split_4(x)
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], x.shape[1], 4, 2]))
        e0, e1, e2, e3 = split_4(even)
        o0, o1, o2, o3 = split_4(odd)
        return e0, o0, e1, o1, e2, o2, e3, o3


@triton.jit
def join_4(first, second, third, fourth):
    joined = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(joined, [first.shape[0], first.shape[1], 4])


@triton.jit
def join_steps(steps, STEPS: tl.constexpr):
    """The steps of a group into [rows, lanes, STEPS]."""
    if STEPS == 1:
        return steps[0][:, :, None]
    elif STEPS == 4:
        return join_4(steps[0], steps[1], steps[2], steps[3])
    else:
        even = join_4(steps[0], steps[2], steps[4], steps[6])
        odd = join_4(steps[1], steps[3], steps[5], steps[7])
        return tl.reshape(tl.join(even, odd), [even.shape[0], even.shape[1], 8])


@triton.jit
def one_of(x, selected, AXIS: tl.constexpr):
    """The one selected entry along an axis: a number where there is one row, else a tile one lane long.

    The sum has a single term: exact, and NaN stays where it is. A number has no layout; that of a tile with one entry
    would leave each lane to compute what it makes of all others.
    """
    terms = tl.where(selected, x, 0)
    if x.shape[1 - AXIS] == 1:
        return tl.sum(terms)
    else:
        return tl.sum(terms, axis=AXIS, keep_dims=True)


@triton.jit
def store_steps(
    pointer, steps, t, mask, n_steps, time_stride, STEPS: tl.constexpr, VECTOR: tl.constexpr, EVEN: tl.constexpr
):
    """Write the steps of a tile of groups, the first of which are at t."""
    if VECTOR:
        wide_t = t[:, :, None] + tl.arange(0, STEPS)[None, None, :]
        wide_mask = mask[:, :, None]
        if not EVEN:
            wide_mask = wide_mask & (wide_t < n_steps)
        tl.store(pointer[:, :, None] + wide_t * time_stride, join_steps(steps, STEPS), wide_mask)
    else:
        for j in tl.static_range(STEPS):
            step_mask = mask
            if not EVEN:
                step_mask = mask & (t + j < n_steps)
            tl.store(pointer + (t + j) * time_stride, steps[j], step_mask)


@triton.jit
def load_groups(start, time_stride, KIND: tl.constexpr, t, mask, ends_inside, n_total, NUMBER: tl.constexpr):
    """One field's groups: vector accesses, or step by step where the tensor `ends_inside` one of them.

    A branch, since a mask that can differ between the steps of a group forbids vector accesses. It is made of more than
    another mask: branches that differ in an operand only would be merged into one, with both masks.
    """
    if ends_inside:
        value = load_field(start, time_stride, KIND, t, mask & (t < n_total), NUMBER)
    else:
        value = load_field(start, time_stride, KIND, t, mask, NUMBER)
    return value


@triton.jit
def store_groups(
    pointer, steps, t, mask, begin, end, is_shared, time_stride, STEPS: tl.constexpr, N_OUTPUTS: tl.constexpr
):
    """Write what lies from `begin` to `end`: whole groups, and (`is_shared`) parts of those at either end."""
    whole = mask & (t >= begin) & (t + STEPS <= end)
    wide_t = t[:, :, None] + tl.arange(0, STEPS)[None, None, :]
    joined = join_steps(steps, STEPS)
    tl.store(pointer + wide_t * time_stride, joined, whole[:, :, None])
    if is_shared:
        part = mask & ~whole
        if N_OUTPUTS > 1:
            # Triton 3.6 cannot take an output apart again in a branch, if another output was made of the same state.
            tl.store(pointer + wide_t * time_stride, joined, part[:, :, None] & (wide_t >= begin) & (wide_t < end))
        else:
            for j in tl.static_range(STEPS):
                tl.store(pointer + (t + j) * time_stride, steps[j], part & (t + j >= begin) & (t + j < end))


@triton.jit
def fold_group(
    coefficients,
    log2_decay,
    LEAF: tl.constexpr,
    EXTEND: tl.constexpr,
    WEIGHT: tl.constexpr,
    STEPS: tl.constexpr,
    REVERSE: tl.constexpr,
):
    """The map of a group's steps, applied from the open end outward."""
    folded = LEAF(coefficients[STEPS - 1 if REVERSE else 0], log2_decay, WEIGHT)
    for k in tl.static_range(1, STEPS):
        folded = EXTEND(coefficients[STEPS - 1 - k if REVERSE else k], log2_decay, folded)
    return folded


@triton.jit
def finish_group(coefficients, state, STEP: tl.constexpr, STEPS: tl.constexpr, REVERSE: tl.constexpr):
    """The state before and after each of a group's steps: STEPS + 1 of them in natural order."""
    states = (state,)
    for k in tl.static_range(STEPS):
        state = STEP(coefficients[STEPS - 1 - k if REVERSE else k], state)
        if REVERSE:
            states = (state,) + states
        else:
            states = states + (state,)
    return states


@triton.jit
def map_before(
    summaries,
    chunk,
    rows,
    row_mask,
    n_rows,
    identity,
    COMPOSE_SCAN: tl.constexpr,
    MAP: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROW_AXIS: tl.constexpr,
):
    """The map of everything between the open end and a chunk, composed from the summaries of the chunks there."""
    chunks = tl.expand_dims(tl.arange(0, CHUNKS), ROW_AXIS)
    mask = (chunks < chunk) & row_mask
    offset = chunks.to(rows.dtype) * n_rows + rows
    maps = ()
    for i in tl.static_range(MAP):
        maps = maps + (tl.where(mask, tl.load(summaries[i] + offset, mask, other=0), identity[i]),)
    composed = COMPOSE_SCAN(maps, 1 - ROW_AXIS)
    return [one_of(part, chunks == CHUNKS - 1, 1 - ROW_AXIS) for part in composed]


@triton.jit(
    do_not_specialize=[
        "outer_strides",
        "inner_strides",
        "inner_sizes",
        "n_rows",
        "n_units",
        "n_groups",
        "rows_per_tile",
        "n_action_units",
        "n_sequences",
    ],
    do_not_specialize_on_alignment=["time_strides", "action_strides"],
)
def scan(
    pointers,
    outer_strides,
    inner_strides,
    inner_sizes,
    time_strides,
    action_strides,  # what is there, and the layouts it is in
    summaries,
    scalars,
    log2_decay,
    inverse_length,
    n_rows,
    n_units,
    n_groups,
    rows_per_tile,
    n_action_units,
    n_sequences,  #
    FIELDS: tl.constexpr,
    WIDE: tl.constexpr,
    ROW_FIELDS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    OUTPUTS: tl.constexpr,  # slots: where each tensor is found
    COEFFICIENTS: tl.constexpr,
    EMIT: tl.constexpr,
    DERIVE: tl.constexpr,
    REVERSE: tl.constexpr,
    STARTS: tl.constexpr,
    ROLES: tl.constexpr,  # the algorithm
    N_FIELDS: tl.constexpr,
    N_LOADED: tl.constexpr,
    N_WIDE: tl.constexpr,
    N_DERIVED: tl.constexpr,
    N_ROW_FIELDS: tl.constexpr,
    N_OUTPUTS: tl.constexpr,  #
    STEP: tl.constexpr,
    CLOSE: tl.constexpr,
    CONSTANT: tl.constexpr,
    LEAF: tl.constexpr,
    EXTEND: tl.constexpr,  #
    IDENTITY: tl.constexpr,
    APPLY: tl.constexpr,
    SCAN: tl.constexpr,
    COMPOSE: tl.constexpr,  #
    COMPOSE_SCAN: tl.constexpr,
    MAP: tl.constexpr,
    STATE: tl.constexpr,  # its maps
    NUMBER: tl.constexpr,
    WEIGHT: tl.constexpr,
    INDEX: tl.constexpr,  # precision
    STEPS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVEN: tl.constexpr,
    UNIT: tl.constexpr,
    ACTIONS: tl.constexpr,  # layout
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TILES: tl.constexpr,
    CHUNKS: tl.constexpr,
    DENSE: tl.constexpr,  # plan
    SUMMARISE: tl.constexpr,
):
    """Scan a program's rows over one chunk of time, and write what SUMMARISE says.

    SEQUENCES is the slot of `cu_seqlens` where sequences are packed; each of them has an open end then, and row fields
    a value for each. Its rows share no groups unless there is only one (DENSE).

    ROLES, in a call with a mask, are the places of terminateds, truncateds, bootstrap values, next values and the
    values that a step reads of the next one, among the fields, and of last values among the row fields. The mask itself
    is loaded behind the fields.

    TILES is the number of tiles in a chunk: 1 with CHUNKS == 0 means that whole rows share a tile, 0 that a program
    walks its rows to the end. CHUNKS bounds the number of chunks; 0 means that the chunk is the whole row. DENSE rows
    have at least STEPS steps, so that a group holds at most one row's start; a program counts its groups itself then.
    `inverse_length` is the reciprocal of what a tile is divided by: steps of a row where DENSE, else groups of a row.
    """
    ROW_AXIS: tl.constexpr = 0 if VECTOR else 1
    TIME_AXIS: tl.constexpr = 1 - ROW_AXIS
    WHOLE_ROWS: tl.constexpr = TILES == 1 and CHUNKS == 0
    n_steps = n_units.to(INDEX) * UNIT
    n_total = n_rows.to(INDEX) * n_steps
    lanes = tl.expand_dims(tl.arange(0, LANES), ROW_AXIS)
    columns = tl.expand_dims(tl.arange(0, ROWS), TIME_AXIS)
    numbers = [number_from(scalar, NUMBER) for scalar in scalars]
    if DENSE:
        # Steps, and the groups that hold them, are counted from the first step of the tensor.
        lane_group = lanes
        first_row = tl.program_id(0).to(INDEX) * rows_per_tile
        begin = first_row * n_steps
        end = tl.minimum(begin + rows_per_tile * n_steps, n_total)
        group_0 = begin // STEPS
        n_groups = tl.cdiv(end, STEPS) - group_0
        rows = first_row + columns
        row_mask = rows < n_rows
    elif WHOLE_ROWS:
        # n_groups is small: the quotient is exact in float32.
        slot = ((lanes.to(tl.float32) + 0.5) * inverse_length).to(tl.int32)
        lane_group = lanes - slot * n_groups
        rows = (tl.program_id(0).to(INDEX) * rows_per_tile + slot) * ROWS + columns
        row_mask = (rows < n_rows) & (slot < rows_per_tile)
    else:
        lane_group = lanes
        rows = tl.program_id(0).to(INDEX) * ROWS + columns
        row_mask = rows < n_rows

    # What `one_of` makes of one row: a number.
    if ROWS == 1:
        zero = tl.cast(0.0, NUMBER)
    else:
        zero = tl.zeros_like(rows).to(NUMBER)
    never = rows < 0
    carry = (zero,)
    for k in tl.static_range(1, STATE):
        carry = carry + (zero,)
    maps = IDENTITY(zero, WEIGHT)
    mark_carry = (tl.zeros_like(zero).to(tl.int32), zero)
    tile_0 = 0
    n_tiles = TILES
    if TILES == 0:
        n_tiles = tl.cdiv(n_groups, LANES)
    if CHUNKS > 0:
        chunk = tl.program_id(1)
        if SUMMARISE == OUTPUT:
            # In the other order: what the first launch read last is what the cache still holds.
            chunk = tl.num_programs(1) - 1 - chunk
            carry = APPLY(
                map_before(summaries, chunk, rows, row_mask, n_rows, maps, COMPOSE_SCAN, MAP, CHUNKS, ROW_AXIS), carry
            )
        if ROLES is not None and SUMMARISE != MARKS:
            mark_carry = map_before(
                (summaries[MAP], summaries[MAP + 1]),
                chunk,
                rows,
                row_mask,
                n_rows,
                mark_carry,
                compose_marks,
                2,
                CHUNKS,
                ROW_AXIS,
            )
        tile_0 = chunk * TILES

    if SEQUENCES is not None:
        offsets = pointers[SEQUENCES[0]]
        offsets_stride = time_strides[SEQUENCES[1]]
        few_begun = n_sequences.to(INDEX) * 0
        most_begun = n_sequences.to(INDEX) + 1
        if TILES != 1:
            first_t, end_t = steps_of_tiles(tile_0, n_tiles, n_groups, n_steps, STEPS, LANES, REVERSE)
            few_begun = begun_in_all(offsets, offsets_stride, few_begun, most_begun, first_t)
            most_begun = begun_in_all(offsets, offsets_stride, few_begun, most_begun, end_t)

    for tile in range(n_tiles):
        group = (tile_0 + tile).to(INDEX) * LANES + lane_group
        if REVERSE:
            t = (n_groups - 1 - group) * STEPS
            beyond_t = t + STEPS
            open_end = n_steps - 1
        else:
            t = group * STEPS
            beyond_t = t - 1
            open_end = 0
        mask = row_mask & (group < n_groups)
        beyond_mask = mask & (beyond_t >= 0) & (beyond_t < n_steps)
        opening = mask & (group == 0)
        opening_rows = rows
        ends_inside: tl.constexpr = False
        if DENSE:
            t += group_0 * STEPS
            beyond_t = t + STEPS if REVERSE else t - 1
            beyond_mask = mask & (beyond_t >= 0) & (beyond_t < n_total)
            # Where in its row a group begins; the first one may begin in the row before.
            local = t - begin
            slot = tl.where(local < 0, -1, 0)
            if WHOLE_ROWS:
                # Offsets within a tile are small: the quotient is exact in float32.
                slot += ((local.to(tl.float32) + 0.5) * inverse_length).to(tl.int32)
            dense_t = local - slot * n_steps
            if REVERSE:
                opening = mask & (dense_t + STEPS >= n_steps)
                opening_rows = first_row + slot
            else:
                opening = mask & ((dense_t == 0) | (dense_t + STEPS > n_steps))
                opening_rows = first_row + slot + (dense_t > 0)
            tile_group = (tile_0 + tile).to(INDEX) * LANES
            at_an_end = (tile_group == 0) | (tile_group + LANES >= n_groups)
            is_shared = at_an_end & (((begin | end) % STEPS) != 0)
            ends_inside = at_an_end & (end == n_total) & (n_total % STEPS != 0)

        if SEQUENCES is None:
            row_values = [
                (
                    as_kind(
                        tl.load(
                            row_start(
                                pointers[ROW_FIELDS[i][0]],
                                outer_strides,
                                inner_strides,
                                inner_sizes,
                                opening_rows,
                                ROW_FIELDS[i][1],
                                ROW_FIELDS[i][2],
                                1,
                            ),
                            opening & (opening_rows < n_rows),
                            other=0,
                        ),
                        ROW_FIELDS[i][3],
                        NUMBER,
                    )
                    if ROW_FIELDS[i] is not None
                    else None
                )
                for i in (0, 1, 2, 3)[:N_ROW_FIELDS]
            ]
            values_of_rows = [row_values for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
        else:
            if WHOLE_ROWS:
                first_t, end_t = few_begun - 1, n_steps
            else:
                first_t, end_t = steps_of_tiles(tile_0 + tile, 1, n_groups, n_steps, STEPS, LANES, REVERSE)
            few = begun_in_all(offsets, offsets_stride, few_begun, most_begun, first_t)
            most = begun_in_all(offsets, offsets_stride, few, most_begun, end_t)
            FIRST: tl.constexpr = 0 if REVERSE else -1
            counts = [
                begun(offsets, offsets_stride, few, most, t + j + FIRST)
                for j in (0, 1, 2, 3, 4, 5, 6, 7, 8)[: STEPS + 1]
            ]
            BEHIND: tl.constexpr = 1 if REVERSE else 0
            sequences = [counts[j + 1 - BEHIND] - 1 for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
            inside = [(sequences[j] >= 0) & (sequences[j] < n_sequences) for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
            # The row ends every sequence: nothing is read beyond it, whatever the offsets are.
            open_ends = [
                inside[j] & ((counts[j + 1] > counts[j]) | (t + j == open_end))
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            values_of_rows = [
                [
                    (
                        load_field(
                            row_start(
                                pointers[ROW_FIELDS[i][0]],
                                outer_strides,
                                inner_strides,
                                inner_sizes,
                                rows,
                                ROW_FIELDS[i][1],
                                ROW_FIELDS[i][2],
                                1,
                            ),
                            time_strides[ROW_FIELDS[i][1]],
                            ROW_FIELDS[i][3],
                            sequences[j],
                            mask & open_ends[j],
                            NUMBER,
                        )
                        if ROW_FIELDS[i] is not None
                        else None
                    )
                    for i in (0, 1, 2, 3)[:N_ROW_FIELDS]
                ]
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
        starts = [
            (
                (
                    row_start(
                        pointers[FIELDS[i][0]],
                        outer_strides,
                        inner_strides,
                        inner_sizes,
                        rows,
                        FIELDS[i][1],
                        FIELDS[i][2],
                        UNIT,
                    )
                    if not DENSE
                    else pointers[FIELDS[i][0]]
                )
                if FIELDS[i] is not None
                else None
            )
            for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_LOADED]
        ]
        beyond = [
            (
                load_field(starts[i], time_strides[FIELDS[i][1]], FIELDS[i][3], beyond_t, beyond_mask, NUMBER)
                if FIELDS[i] is not None
                else None
            )
            for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_LOADED]
        ]
        if N_DERIVED > 0:
            of_beyond = derive_at(
                beyond, never, beyond_mask, rows, beyond_t, pointers, outer_strides, inner_strides, inner_sizes,
                time_strides, action_strides, n_action_units, None, DERIVE, WIDE, N_WIDE, ACTIONS, NUMBER, INDEX, True,
            )  # fmt: skip
            beyond = [
                beyond[i] if i < N_LOADED else of_beyond[i - N_LOADED]
                for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[: N_LOADED + N_DERIVED]
            ]
        if VECTOR:
            wide_t = t[:, :, None] + tl.arange(0, STEPS)[None, None, :]
            wide_mask = mask[:, :, None]
            if not EVEN:
                wide_mask = wide_mask & (wide_t < n_steps)
            loaded = [
                (
                    load_groups(
                        starts[i] if DENSE else starts[i][:, :, None],
                        time_strides[FIELDS[i][1]],
                        FIELDS[i][3],
                        wide_t,
                        wide_mask,
                        ends_inside,
                        n_total,
                        NUMBER,
                    )
                    if FIELDS[i] is not None
                    else None
                )
                for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_LOADED]
            ]
            if STARTS is not None:
                first = dense_t if DENSE else t
                opens_wide = first[:, :, None] + tl.arange(0, STEPS)[None, None, :] == open_end
                loaded = [
                    (
                        flags_behind(loaded[i], beyond[i], row_values[STARTS[i]], opens_wide, STEPS)
                        if STARTS[i] is not None and FIELDS[i] is not None
                        else loaded[i]
                    )
                    for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_LOADED]
                ]
            if N_DERIVED > 0:
                derived = derive_at(
                    loaded, wide_t == open_end if SEQUENCES is None else join_steps(open_ends, STEPS),
                    wide_mask if SEQUENCES is None else wide_mask & join_steps(inside, STEPS),
                    rows[:, :, None], wide_t, pointers, outer_strides, inner_strides, inner_sizes, time_strides,
                    action_strides, n_action_units, join_steps(sequences, STEPS) if SEQUENCES is not None else None,
                    DERIVE, WIDE, N_WIDE, ACTIONS, NUMBER, INDEX, False,
                )  # fmt: skip
                loaded = [
                    loaded[i] if i < N_LOADED else derived[i - N_LOADED]
                    for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[: N_LOADED + N_DERIVED]
                ]
            pieces = [
                split_steps(loaded[i], STEPS) if loaded[i] is not None else (None,) * STEPS
                for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[: N_LOADED + N_DERIVED]
            ]
            steps = [[piece[j] for piece in pieces] for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
        else:
            steps = [
                [
                    (
                        load_field(
                            starts[i],
                            time_strides[FIELDS[i][1]],
                            FIELDS[i][3],
                            t + j,
                            mask if EVEN else mask & (t + j < n_steps),
                            NUMBER,
                        )
                        if FIELDS[i] is not None
                        else None
                    )
                    for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_LOADED]
                ]
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            if STARTS is not None:
                steps = [
                    [
                        (
                            flag_behind(
                                steps[j + 1][i] if j < STEPS - 1 else beyond[i],
                                row_values[STARTS[i]],
                                t + j == open_end,
                            )
                            if STARTS[i] is not None and FIELDS[i] is not None
                            else steps[j][i]
                        )
                        for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_LOADED]
                    ]
                    for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
                ]
            if N_DERIVED > 0:
                within = [mask if SEQUENCES is None else mask & inside[j] for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
                derived = [
                    derive_at(
                        steps[j], t + j == open_end if SEQUENCES is None else open_ends[j],
                        within[j] if EVEN else within[j] & (t + j < n_steps),
                        rows, t + j, pointers, outer_strides, inner_strides, inner_sizes, time_strides, action_strides,
                        n_action_units, sequences[j] if SEQUENCES is not None else None, DERIVE, WIDE, N_WIDE, ACTIONS,
                        NUMBER, INDEX, False,
                    )
                    for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
                ]  # fmt: skip
                steps = [
                    [
                        steps[j][i] if i < N_LOADED else derived[j][i - N_LOADED]
                        for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[: N_LOADED + N_DERIVED]
                    ]
                    for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
                ]

        neighbours = [
            (steps[j + 1] if j < STEPS - 1 else beyond) if REVERSE else (steps[j - 1] if j > 0 else beyond)
            for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
        ]
        in_row = dense_t if DENSE else t
        if ROLES is not None:
            at_open_end = [
                opens(in_row, open_end, n_steps, never, j, STEPS, EVEN, REVERSE, DENSE)
                if SEQUENCES is None
                else open_ends[j]
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            HAS_BOOTSTRAP: tl.constexpr = ROLES[2] is not None and FIELDS[ROLES[2]] is not None
            HAS_LAST: tl.constexpr = ROLES[5] is not None and ROW_FIELDS[ROLES[5]] is not None
            HAS_NEXT: tl.constexpr = ROLES[3] is not None and FIELDS[ROLES[3]] is not None
            PASSES: tl.constexpr = HAS_BOOTSTRAP or HAS_LAST
            outside = [
                (
                    steps[j][ROLES[2]]
                    if HAS_BOOTSTRAP
                    else (
                        tl.where(at_open_end[j], values_of_rows[j][ROLES[5]], 0.0)
                        if HAS_LAST
                        else (steps[j][ROLES[3]] if HAS_NEXT else tl.cast(0.0, NUMBER))
                    )
                )
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            marks = [
                mark(
                    steps[j][N_FIELDS],
                    steps[j][ROLES[4]] if ROLES[4] is not None else None,
                    steps[j][ROLES[0]],
                    steps[j][ROLES[1]],
                    outside[j],
                    at_open_end[j],
                    PASSES,
                )
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            scanned_marks = scan_marks(last_of_group(marks, STEPS), TIME_AXIS)
            found = scanned_marks[2:]
            if not WHOLE_ROWS:
                found = nearer(mark_carry[0], mark_carry[1], found)
            if TILES != 1 or SUMMARISE == MARKS:
                of_tile = [one_of(part, lanes == LANES - 1, TIME_AXIS) for part in scanned_marks[:2]]
                mark_carry = nearer(mark_carry[0], mark_carry[1], of_tile)
            behind = behind_each(marks, at_open_end, found[0], found[1], STEPS)
            own = [own_flag(steps[j][ROLES[0]], steps[j][ROLES[1]]) for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
            valid = [steps[j][N_FIELDS] for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]
            # The steps as they would be if there were valid ones alone.
            steps = [
                [
                    (
                        or_behind(steps[j][i], own[j], behind[j], TERMINATED)
                        if i == ROLES[0]
                        else (
                            or_behind(steps[j][i], own[j], behind[j], CUT_OFF)
                            if i == ROLES[1]
                            else (
                                tl.where(own[j] | at_open_end[j], outside[j], behind[j][1])
                                if PASSES and i == ROLES[2]
                                else (
                                    tl.where(~own[j] & (behind[j][0] == CUT_OFF), behind[j][1], steps[j][i])
                                    if HAS_NEXT and not PASSES and i == ROLES[3]
                                    else steps[j][i]
                                )
                            )
                        )
                    )
                    for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_FIELDS]
                ]
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            neighbours = [
                [
                    behind[j][1] if i == ROLES[4] else steps[j][i]
                    for i in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)[:N_FIELDS]
                ]
                for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]
            ]
            is_last = [is_open(own[j], at_open_end[j], behind[j]) for j in (0, 1, 2, 3, 4, 5, 6, 7)[:STEPS]]

        at_open_end = ()
        coefficients = ()
        for j in tl.static_range(STEPS):
            if ROLES is None:
                if SEQUENCES is None:
                    ends = opens(in_row, open_end, n_steps, never, j, STEPS, EVEN, REVERSE, DENSE)
                else:
                    ends = open_ends[j]
                step_map = COEFFICIENTS(steps[j], neighbours[j], ends, values_of_rows[j], numbers)
            else:
                ends = is_last[j]
                step_map = transparent(
                    COEFFICIENTS(steps[j], neighbours[j], ends, values_of_rows[j], numbers), valid[j]
                )
            at_open_end = at_open_end + (ends,)
            # Nothing comes in at the open end: not the neighbouring row, nor what padding holds beyond the last step.
            coefficients = coefficients + (CLOSE(step_map, ends),)
        folded = fold_group(coefficients, log2_decay, LEAF, EXTEND, WEIGHT, STEPS, REVERSE)

        if SUMMARISE == MAPS:
            whole = [one_of(part, lanes == LANES - 1, TIME_AXIS) for part in COMPOSE_SCAN(folded, TIME_AXIS)]
            maps = COMPOSE(*maps, *whole)
        elif SUMMARISE == OUTPUT:
            scanned = SCAN(folded, IDENTITY(folded[MAP - 1], WEIGHT), TIME_AXIS)
            if WHOLE_ROWS:
                state = CONSTANT(scanned[MAP:])
            else:
                state = APPLY(scanned[MAP:], carry)
            if TILES != 1:
                carry = APPLY([one_of(part, lanes == LANES - 1, TIME_AXIS) for part in scanned[:MAP]], carry)
            states = finish_group(coefficients, state, STEP, STEPS, REVERSE)
            emitted = ()
            for j in tl.static_range(STEPS):
                state = states[j] if REVERSE else states[j + 1]
                neighbour_state = states[j + 1] if REVERSE else states[j]
                emitted = emitted + (
                    EMIT(steps[j], neighbours[j], at_open_end[j], values_of_rows[j], state, neighbour_state, numbers),
                )
            for i in tl.static_range(N_OUTPUTS):
                output_steps = ()
                for j in tl.static_range(STEPS):
                    output = emitted[j][i]
                    if ROLES is not None:
                        output = tl.where(valid[j], output, 0.0)
                    if SEQUENCES is not None:
                        output = tl.where(inside[j], output, 0.0)
                    output_steps = output_steps + (output,)
                if DENSE:
                    store_groups(
                        pointers[OUTPUTS[i][0]],
                        output_steps,
                        t,
                        mask,
                        begin,
                        end,
                        is_shared,
                        time_strides[OUTPUTS[i][1]],
                        STEPS,
                        N_OUTPUTS,
                    )
                else:
                    start = row_start(
                        pointers[OUTPUTS[i][0]],
                        outer_strides,
                        inner_strides,
                        inner_sizes,
                        rows,
                        OUTPUTS[i][1],
                        OUTPUTS[i][2],
                        UNIT,
                    )
                    store_steps(start, output_steps, t, mask, n_steps, time_strides[OUTPUTS[i][1]], STEPS, VECTOR, EVEN)

    if SUMMARISE != OUTPUT:
        offset = chunk.to(INDEX) * n_rows + rows
        if SUMMARISE == MARKS:
            for i in tl.static_range(2):
                tl.store(summaries[MAP + i] + offset, mark_carry[i], row_mask)
        else:
            for i in tl.static_range(MAP):
                tl.store(summaries[i] + offset, maps[i], row_mask)
