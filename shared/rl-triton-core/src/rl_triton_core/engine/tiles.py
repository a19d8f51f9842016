"""The tiles that a plan chooses from, in order of preference.

They are the winners of sweeps on an H200 with GAE (and Retrace, where a step reads a number for every action), or
within a few percent of them where one tile serves more shapes. What the sweeps say:

* Eight steps a lane: a scan over lanes costs the same however long the groups are, and a lane's loads become 128-bit
  accesses for 16-bit types as well. Four cost up to 30 % more, except for short time-major rows, which eight pad.
* One set of lanes for many lengths: rows lie end to end over the lanes, so a tile serves every length up to its size.
* Where rows follow each other without a gap, groups are counted in memory: any length is loaded as the common one is.
* As few warps a program as a row fits: more programs are in flight while one waits for its loads.
* A walk where there are rows enough for it, if a row does not fit eight warps.
* Chunks only where rows alone do not fill the device: they read the inputs twice, the second time mostly from L2.
* With two outputs, a lane keeps what it has read until the scan is over: tiles that are smaller, or of more warps.
* With a number for every action, what a step reads outweighs the scan. Four steps a lane where a step's actions are
  eight or fewer, else one; and blocks of 128 bytes that are fetched ahead, where vector accesses can.
"""

from __future__ import annotations

from typing import NamedTuple


class Bucket(NamedTuple):
    """A tile for every row of up to `lanes` groups of `steps` steps."""

    lanes: int
    columns: int
    warps: int
    steps: int = 8

    @property
    def size(self) -> int:
        return self.lanes * self.steps


class Whole(NamedTuple):
    """Rows that fit a tile, and are no longer than `longest`."""

    bucket: Bucket
    longest: int = 2**62


class Walk(NamedTuple):
    """Rows that one program each walks tile by tile.

    There have to be as many as keep `filling` warps busy on every multiprocessor, or rows of no more than `always`
    steps, for which two launches that read everything twice gain nothing.
    """

    bucket: Bucket
    longest: int = 2**62
    filling: int = 10
    always: int = 0


class Chunks(NamedTuple):
    """What rows are split into.

    Attributes:
        buckets: the tiles of a chunk, from small to large.
        bounds: the bounds on the number of chunks that are compiled in; never more than the last.
        most_rows: for no more rows than these.
    """

    buckets: tuple[Bucket, ...]
    bounds: tuple[int, ...] = (32, 128, 512)
    most_rows: int = 2**62


class Options(NamedTuple):
    """What is tried in turn.

    Attributes:
        tiles: whole rows and walks, in order of preference.
        chunks: where nothing else serves, those for the fewest rows first.
    """

    tiles: tuple[Whole | Walk, ...]
    chunks: tuple[Chunks, ...]


class Layouts(NamedTuple):
    """What calls choose from, by how their steps lie in memory.

    Attributes:
        aligned: time contiguous and a multiple of eight: the common rollout.
        unaligned: whatever else loads in narrower pieces (rows with gaps).
        dense_whole: rows that follow each other without a gap, where such a tile holds one or more of them.
        dense: the same where they are too long for those.
        time_major: rows contiguous.
    """

    aligned: Options
    unaligned: Options
    dense_whole: tuple[Bucket, ...]
    dense: Options
    time_major: Options


# Every chunk reads the summaries of those before it: with more of them than this, larger ones are faster.
FEW_CHUNKS = 128

# Rows of fewer steps than a vector access holds are walked across, whatever their layout.
SHORT_ROW = 8

# Idle lanes cost as much as others: the larger tile where dense rows fill less of the smaller one than this.
FILLED = 0.75

_WALKS = (
    Walk(Bucket(128, 1, 2)),
    # The few lengths up to there that touch one group more than a tile has: chunks would be two more kernels.
    Walk(Bucket(512, 1, 8), always=4096),
)
_CHUNKS = (Chunks((Bucket(128, 1, 2), Bucket(256, 1, 4))),)
# Sixteen adjacent rows fill a memory sector of every dtype, and the scan runs across warps.
_TIME_MAJOR_SHORT = (Whole(Bucket(4, 32, 4, 1), longest=1), Whole(Bucket(8, 16, 4, 4)))
_TIME_MAJOR_LONG = (
    Walk(Bucket(4, 32, 4), longest=192),
    Whole(Bucket(32, 16, 16)),
    Walk(Bucket(16, 16, 4)),
    Whole(Bucket(64, 8, 16)),
)
# 128 steps where those are few chunks: 128 rows of 4096 steps are then 256 programs. With 256 steps they are half as
# many and take 1.2 times as long, though summaries take 0.8 % of a float32 output's memory, not 1.6 %.
_TIME_MAJOR_BUCKETS = (Bucket(16, 16, 8), Bucket(32, 8, 8), Bucket(64, 8, 16))
# With few rows, many chunks fill the device; with fewer than eight, most of a lane's columns would be idle.
_TIME_MAJOR_CHUNKS = (
    Chunks((Bucket(64, 4, 8), Bucket(128, 4, 16), Bucket(256, 2, 16)), most_rows=2),
    Chunks((Bucket(64, 4, 8), Bucket(128, 4, 16)), most_rows=4),
    Chunks(_TIME_MAJOR_BUCKETS, most_rows=8),
    Chunks(_TIME_MAJOR_BUCKETS, bounds=(32, 128)),
)
ONE_OUTPUT = Layouts(
    # One warp for up to 256 steps: its scan needs no barrier, and a program ends when its own loads do (10 % less than
    # two warps at 128 steps).
    aligned=Options((Whole(Bucket(32, 1, 1)), Whole(Bucket(128, 1, 4)), Whole(Bucket(512, 1, 8)), *_WALKS), _CHUNKS),
    # One tile keeps the number of kernels small.
    unaligned=Options((Whole(Bucket(512, 1, 8)), *_WALKS), _CHUNKS),
    # Two, not three: with a walk for the few lengths mentioned above, eight kernels serve every length up to 4096.
    dense_whole=(Bucket(128, 1, 4), Bucket(512, 1, 8)),
    dense=Options(_WALKS, _CHUNKS),
    time_major=Options(
        (
            *_TIME_MAJOR_SHORT,
            Whole(Bucket(16, 16, 8)),
            *_TIME_MAJOR_LONG,
        ),
        _TIME_MAJOR_CHUNKS,
    ),
)
_TWO_OUTPUTS_WALKS = (
    Walk(Bucket(64, 1, 2)),
    Walk(Bucket(128, 1, 4)),
    Walk(Bucket(512, 1, 16), always=4096),
)
_TWO_OUTPUTS_CHUNKS = (Chunks((Bucket(128, 1, 4), Bucket(256, 1, 8))),)
TWO_OUTPUTS = Layouts(
    aligned=Options((Whole(Bucket(32, 1, 1)), Whole(Bucket(128, 1, 4)), *_TWO_OUTPUTS_WALKS), _TWO_OUTPUTS_CHUNKS),
    unaligned=Options((Whole(Bucket(256, 1, 8)), *_TWO_OUTPUTS_WALKS), _TWO_OUTPUTS_CHUNKS),
    dense_whole=(Bucket(128, 1, 4), Bucket(256, 1, 8)),
    dense=Options(_TWO_OUTPUTS_WALKS, _TWO_OUTPUTS_CHUNKS),
    time_major=Options(
        (
            *_TIME_MAJOR_SHORT,
            Whole(Bucket(16, 16, 8, 4)),
            Whole(Bucket(32, 16, 16, 4)),
            *_TIME_MAJOR_LONG,
        ),
        _TIME_MAJOR_CHUNKS,
    ),
)

# A block of actions, where there are more than the last of these.
ACTION_BLOCKS = (16, 8)
# What is fetched ahead: whole 16-byte accesses of it only, so it takes actions that follow each other, in fours.
FETCHED_BLOCK = 32

FEW_ACTIONS = 4
_WALK_OF_MANY_ROWS = Walk(Bucket(64, 1, 2, 4), filling=15)
_FEW_ACTIONS_WALKS = (
    Walk(Bucket(128, 1, 4, 4)),
    Walk(Bucket(256, 1, 8, 4)),
    Walk(Bucket(512, 1, 16, 4), always=4096),
)
CONTIGUOUS_FEW_ACTIONS = Options(
    (
        Whole(Bucket(32, 1, 1, 4)),
        Whole(Bucket(128, 1, 4, 4)),
        _WALK_OF_MANY_ROWS,
        Whole(Bucket(512, 1, 16, 4)),
        *_FEW_ACTIONS_WALKS,
    ),
    (Chunks((Bucket(128, 1, 4, 4),)),),
)
# As above where steps are not adjacent in fours: one tile, to keep the number of kernels small.
UNALIGNED_FEW_ACTIONS = CONTIGUOUS_FEW_ACTIONS._replace(
    tiles=(Whole(Bucket(128, 1, 4, 4)), _WALK_OF_MANY_ROWS, *_FEW_ACTIONS_WALKS)
)
SOME_ACTIONS = 8
UNALIGNED_SOME_ACTIONS = CONTIGUOUS_FEW_ACTIONS._replace(
    tiles=(Whole(Bucket(128, 1, 4, 4)), Walk(Bucket(128, 1, 4, 4)), Walk(Bucket(256, 1, 8, 4), always=4096))
)
CONTIGUOUS_SOME_ACTIONS = UNALIGNED_SOME_ACTIONS._replace(
    tiles=(Whole(Bucket(32, 1, 1, 4)), Whole(Bucket(64, 1, 2, 4)), *UNALIGNED_SOME_ACTIONS.tiles)
)
CONTIGUOUS_MANY_ACTIONS = Options(
    (
        Walk(Bucket(32, 1, 1, 1), filling=15),
        Whole(Bucket(128, 1, 4, 1)),
        Whole(Bucket(256, 1, 8, 1)),
        Walk(Bucket(128, 1, 4, 1)),
        Walk(Bucket(256, 1, 8, 1)),
        Walk(Bucket(512, 1, 16, 1), always=2048),
    ),
    (Chunks((Bucket(256, 1, 8, 1),)),),
)
CONTIGUOUS_FETCHED_ACTIONS = Options(
    (
        Whole(Bucket(128, 1, 4, 1)),
        Walk(Bucket(64, 1, 2, 1), filling=6),
        Walk(Bucket(128, 1, 4, 1), always=512),
    ),
    (Chunks((Bucket(64, 1, 2, 1), Bucket(128, 1, 4, 1))),),
)
TIME_MAJOR_FEW_ACTIONS = Options(
    (
        Whole(Bucket(4, 32, 4, 1)),
        Whole(Bucket(8, 16, 4, 4)),
        Whole(Bucket(16, 16, 8, 4)),
        Walk(Bucket(16, 16, 8, 4), always=512),
    ),
    (
        Chunks((Bucket(256, 2, 16, 4),), bounds=(128,), most_rows=2),
        Chunks((Bucket(64, 4, 8, 4), Bucket(128, 4, 16, 4)), bounds=(128,), most_rows=8),
        Chunks((Bucket(16, 16, 8, 4), Bucket(64, 16, 16, 4)), bounds=(128,)),
    ),
)
TIME_MAJOR_MANY_ACTIONS = Options(
    (
        Whole(Bucket(16, 16, 8, 1)),
        Walk(Bucket(16, 16, 8, 1), always=128),
    ),
    (Chunks((Bucket(16, 16, 8, 1),), bounds=(128,)),),
)
TIME_MAJOR_FETCHED_ACTIONS = Options(
    (
        Walk(Bucket(8, 8, 2, 1), filling=6),
        Whole(Bucket(16, 8, 4, 1)),
        Walk(Bucket(16, 8, 4, 1), always=128),
    ),
    (Chunks((Bucket(16, 8, 4, 1),), bounds=(128,)),),
)
