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


class Options(NamedTuple):
    """What is tried in turn; and what chunks are made of where nothing else serves.

    Attributes:
        tiles: whole rows and walks, in order of preference.
        chunks: the tiles of a chunk, from small to large.
        bounds: the bounds on the number of chunks that are compiled in; never more than the last.
    """

    tiles: tuple[Whole | Walk, ...]
    chunks: tuple[Bucket, ...]
    bounds: tuple[int, ...] = (32, 128, 512)


# Every chunk reads the summaries of those before it: with more of them than this, larger ones are faster.
FEW_CHUNKS = 128

# Rows of fewer steps than a vector access holds are walked across, whatever their layout.
SHORT_ROW = 8

_WALKS = (
    Walk(Bucket(128, 1, 2)),
    # The few lengths up to there that touch one group more than a tile has: chunks would be two more kernels.
    Walk(Bucket(512, 1, 8), always=4096),
)
_CHUNKS = (Bucket(128, 1, 2), Bucket(256, 1, 4))
# Time contiguous and a multiple of eight: the common rollout. One warp for up to 256 steps: its scan needs no barrier,
# and a program ends when its own loads do (10 % less than two warps at 128 steps).
ALIGNED = Options((Whole(Bucket(32, 1, 1)), Whole(Bucket(128, 1, 4)), Whole(Bucket(512, 1, 8)), *_WALKS), _CHUNKS)
# Whatever else (rows with gaps) loads in narrower pieces; one tile keeps the number of kernels small.
UNALIGNED = ALIGNED._replace(tiles=(Whole(Bucket(512, 1, 8)), *_WALKS))
# Rows that follow each other without a gap, where they are too long for the tiles below.
DENSE = ALIGNED._replace(tiles=_WALKS)
# Two, not three: with a walk for the few lengths mentioned above, eight kernels serve every length up to 4096.
DENSE_WHOLE = (Bucket(128, 1, 4), Bucket(512, 1, 8))
# Idle lanes cost as much as others: the larger tile where rows fill less of the smaller one than this.
FILLED = 0.75

# Rows contiguous: sixteen adjacent rows fill a memory sector of every dtype, and the scan runs across warps.
TIME_MAJOR = Options(
    (
        Whole(Bucket(4, 32, 4, 1), longest=1),
        Whole(Bucket(8, 16, 4, 4)),
        Whole(Bucket(16, 16, 8)),
        Walk(Bucket(4, 32, 4), longest=192),
        Whole(Bucket(32, 16, 16)),
        Walk(Bucket(16, 16, 4)),
        Whole(Bucket(64, 8, 16)),
    ),
    # 128 steps where those are few chunks: 128 rows of 4096 steps are then 256 programs. With 256 steps they are half
    # as many and take 1.2 times as long, though summaries take 0.8 % of a float32 output's memory, not 1.6 %.
    (Bucket(16, 16, 8), Bucket(32, 8, 8), Bucket(64, 8, 16)),
    bounds=(32, 128),
)
# With few rows, many chunks fill the device; with fewer than eight, most of a lane's columns would be idle.
TIME_MAJOR_EIGHT_ROWS = TIME_MAJOR._replace(bounds=(32, 128, 512))
TIME_MAJOR_FOUR_ROWS = TIME_MAJOR_EIGHT_ROWS._replace(chunks=(Bucket(64, 4, 8), Bucket(128, 4, 16)))
TIME_MAJOR_TWO_ROWS = TIME_MAJOR_EIGHT_ROWS._replace(chunks=(Bucket(64, 4, 8), Bucket(128, 4, 16), Bucket(256, 2, 16)))

# A block of actions, where there are more than the last of these.
ACTION_BLOCKS = (16, 8)
# What is fetched ahead: whole 16-byte accesses of it only, so it takes actions that follow each other, in fours.
FETCHED_BLOCK = 32

FEW_ACTIONS = 4
_FEW_ACTIONS_WALKS = (
    Walk(Bucket(256, 1, 4, 4)),
    Walk(Bucket(256, 1, 8, 4)),
    Walk(Bucket(512, 1, 16, 4), always=4096),
)
CONTIGUOUS_FEW_ACTIONS = Options(
    (
        Whole(Bucket(32, 1, 1, 4)),
        Whole(Bucket(128, 1, 4, 4)),
        Whole(Bucket(512, 1, 16, 4)),
        *_FEW_ACTIONS_WALKS,
    ),
    (Bucket(128, 1, 4, 4),),
)
# As above where steps are not adjacent in fours: one tile, to keep the number of kernels small.
UNALIGNED_FEW_ACTIONS = CONTIGUOUS_FEW_ACTIONS._replace(tiles=(Whole(Bucket(128, 1, 4, 4)), *_FEW_ACTIONS_WALKS))
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
    (Bucket(256, 1, 8, 1),),
)
CONTIGUOUS_FETCHED_ACTIONS = Options(
    (
        Whole(Bucket(128, 1, 4, 1)),
        Walk(Bucket(64, 1, 2, 1), filling=6),
        Walk(Bucket(128, 1, 4, 1), always=512),
    ),
    (Bucket(64, 1, 2, 1), Bucket(128, 1, 4, 1)),
)
TIME_MAJOR_FEW_ACTIONS = Options(
    (
        Whole(Bucket(8, 16, 4, 4)),
        Whole(Bucket(16, 16, 8, 4)),
        Walk(Bucket(16, 16, 8, 4), always=512),
    ),
    (Bucket(16, 16, 8, 4),),
    bounds=(128,),
)
TIME_MAJOR_MANY_ACTIONS = Options(
    (
        Whole(Bucket(16, 16, 8, 1)),
        Walk(Bucket(16, 16, 8, 1), always=128),
    ),
    (Bucket(16, 16, 8, 1),),
    bounds=(128,),
)
TIME_MAJOR_FETCHED_ACTIONS = Options(
    (
        Walk(Bucket(8, 8, 2, 1), filling=6),
        Whole(Bucket(16, 8, 4, 1)),
        Walk(Bucket(16, 8, 4, 1), always=128),
    ),
    (Bucket(16, 8, 4, 1),),
    bounds=(128,),
)
