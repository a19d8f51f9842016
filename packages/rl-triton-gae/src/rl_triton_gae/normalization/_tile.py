"""The two kernels of normalised advantages: the moments of blocks, and what all of them make of each element.

Moments are (n, mean, M2), in float64. Those of a block are taken in two passes around its largest element, which is
exact where all are equal; a program merges the blocks that it walks, and every program of the second kernel merges what
the first one has left, in the same order: results are the same from run to run.
"""

import triton
import triton.language as tl
from rl_triton_core.engine.kernels import number_from


@triton.jit
def load_block(values, mask, block, size, BLOCK: tl.constexpr):
    """A block of values, 0 where they do not count; whether each does, and where it is.

    Those that do not count are loaded too: a mask that differs from one to the next forbids vector accesses.
    """
    place = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = place < size
    value = tl.load(values + place, valid, other=0).to(tl.float64)
    if mask is not None:
        valid = valid & (tl.load(mask + place, valid, other=0) != 0)
        value = tl.where(valid, value, 0.0)
    return value, valid, place


@triton.jit
def moments_of(value, weight, squares, there):
    """The moments of groups of `weight` elements each, whose means are `value`: of single ones, squares are 0.

    Around the largest value, so that the mean of equal ones is exactly that one.
    """
    n = tl.sum(weight)
    around = tl.max(tl.where(there, value, float("-inf")))
    around = tl.where(n > 0, around, 0.0)
    distance = tl.where(there, value - around, 0.0)
    mean = tl.sum(weight * distance) / tl.maximum(n, 1.0)
    from_mean = tl.where(there, distance - mean, 0.0)
    return n, around + mean, tl.sum(squares) + tl.sum(weight * from_mean * from_mean)


@triton.jit
def merged(n, mean, squares, other_n, other_mean, other_squares):
    """The moments of two sets together, by Chan's formula."""
    total = n + other_n
    share = other_n / tl.maximum(total, 1.0)
    distance = tl.where(n > 0, other_mean - mean, 0.0)
    together = tl.where(n > 0, mean + distance * share, other_mean)
    return total, together, squares + other_squares + distance * distance * n * share


@triton.jit
def write_moments(values, mask, moments, size, BLOCK: tl.constexpr):
    """A column of `moments`, [3, programs], for every program: of the blocks that it walks."""
    n = tl.cast(0.0, tl.float64)
    mean = n
    squares = n
    for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        value, valid, place = load_block(values, mask, block, size, BLOCK)
        own = moments_of(value, valid.to(tl.float64), 0.0 * value, valid)
        n, mean, squares = merged(n, mean, squares, own[0], own[1], own[2])
    column = moments + tl.program_id(0)
    tl.store(column, n)
    tl.store(column + tl.num_programs(0), mean)
    tl.store(column + 2 * tl.num_programs(0), squares)


@triton.jit(do_not_specialize=["n_columns"])
def write_normalized(
    values,
    mask,
    moments,
    normalized,
    eps,
    size,
    n_columns,
    UNBIASED: tl.constexpr,
    SHIFT_MEAN: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every valid value normalised by the moments in all columns together, and 0 elsewhere."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < n_columns
    counts = tl.load(moments + columns, inside, other=0.0)
    means = tl.load(moments + n_columns + columns, inside, other=0.0)
    squares = tl.load(moments + 2 * n_columns + columns, inside, other=0.0)
    n, mean, squares = moments_of(means, counts, squares, counts > 0)
    tells = (n >= 2.0) & (squares != 0.0)
    freedom = n - 1.0 if UNBIASED else n
    deviation = tl.sqrt(tl.where(tells, squares / tl.where(tells, freedom, 1.0), 1.0))
    factor = 1.0 / (deviation + number_from(eps, tl.float64))
    for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        value, valid, place = load_block(values, mask, block, size, BLOCK)
        if SHIFT_MEAN:
            output = tl.where(tells, (value - mean) * factor, 0.0)
        else:
            output = tl.where(tells, value * factor, value)
        output = tl.where(valid, output, 0.0)
        tl.store(normalized + place, output.to(normalized.dtype.element_ty), place < size)
