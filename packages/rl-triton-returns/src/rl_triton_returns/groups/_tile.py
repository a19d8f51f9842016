"""The kernel of group advantages: one launch, in which every program looks up its responses' groups itself.

A program has BLOCK responses. It walks all responses that may be in their groups, OTHERS at a time, compares ids, and
sums up how far its own rewards are from those of the same group: once for the mean, and once more for the variance.
Nothing is sorted, no program waits for another and no sum depends on who comes first, so results are the same from run
to run. Where groups are rows, a program walks the rows of its own responses alone.

    deviation = mean over the group of (own reward - other reward)      exactly 0 where all are equal

A pair costs a few instructions, which is less than a launch for thousands of responses; `_launch` says from where on
that is no longer so. Where there are few responses with many tokens, several programs have the same responses, work out
the same numbers, and write different tokens (the grid's second axis).

    response    an index over prompts and samples, prompts first; one prompt holds them all where rewards have one axis
    tile        [BLOCK, OTHERS] while groups are walked, [BLOCK, TOKENS] while tokens are written
"""

import triton
import triton.language as tl
from rl_triton_core.engine.kernels import number_from


@triton.jit
def at(pointer, strides, responses, n_samples, UNIT: tl.constexpr = 1):
    """Pointers to the responses' entries of a tensor, or to the first tokens of their rows.

    Strides come as 2 * stride + 1, so that their values are never compiled in, and in multiples of UNIT. Offsets are 64
    bits wide: a view's strides may be anything.
    """
    prompt = (responses // n_samples).to(tl.int64)
    sample = (responses % n_samples).to(tl.int64)
    return pointer + (prompt * (strides[0] >> 1) + sample * (strides[1] >> 1)) * UNIT


@triton.jit
def load_group(group_ids_ptr, strides, responses, n_samples, inside):
    """What tells a response's group from others: its id, or the number of its row."""
    if group_ids_ptr is None:
        return responses // n_samples
    else:
        return tl.load(at(group_ids_ptr, strides, responses, n_samples), inside, other=0)


@triton.jit
def load_counted(counted_ptr, strides, responses, n_samples, inside):
    """Which responses count in their group: all that there are, unless the call says."""
    if counted_ptr is None:
        return inside
    else:
        return inside & (tl.load(at(counted_ptr, strides, responses, n_samples), inside, other=0) != 0)


@triton.jit
def compare(
    reward,
    group,
    others,
    end,
    rewards_ptr,
    group_ids_ptr,
    counted_ptr,
    reward_strides,
    group_id_strides,
    counted_strides,
    n_samples,
):
    """Whether others are in the group of a program's responses, and how far its own rewards are above theirs."""
    inside = others < end
    counted = load_counted(counted_ptr, counted_strides, others, n_samples, inside)
    other_group = load_group(group_ids_ptr, group_id_strides, others, n_samples, inside)
    other_reward = tl.load(at(rewards_ptr, reward_strides, others, n_samples), inside, other=0).to(tl.float64)
    same = (group[:, None] == other_group[None, :]) & counted[None, :]
    return same, reward[:, None] - other_reward[None, :]


@triton.jit(do_not_specialize=["n_responses", "n_samples", "n_units"])
def group_advantages(
    rewards_ptr,
    group_ids_ptr,
    counted_ptr,
    tokens_ptr,
    advantages_ptr,
    reward_strides,
    group_id_strides,
    counted_strides,
    token_strides,
    advantage_strides,
    n_responses,
    n_samples,
    n_units,
    eps,
    UNIT: tl.constexpr,
    LEAVE_ONE_OUT: tl.constexpr,
    STANDARDIZE: tl.constexpr,
    UNBIASED: tl.constexpr,
    BLOCK: tl.constexpr,
    OTHERS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    responses = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = responses < n_responses
    reward = tl.load(at(rewards_ptr, reward_strides, responses, n_samples), inside, other=0).to(tl.float64)
    group = load_group(group_ids_ptr, group_id_strides, responses, n_samples, inside)

    start = 0
    end = n_responses
    if group_ids_ptr is None:
        last = tl.minimum(tl.program_id(0) * BLOCK + BLOCK, n_responses) - 1
        start = tl.program_id(0) * BLOCK // n_samples * n_samples
        end = (last // n_samples + 1) * n_samples

    sizes = tl.zeros([BLOCK, OTHERS], tl.int32)
    sums = tl.zeros([BLOCK, OTHERS], tl.float64)
    for first in range(start, end, OTHERS):
        same, difference = compare(
            reward, group, first + tl.arange(0, OTHERS), end, rewards_ptr, group_ids_ptr, counted_ptr,
            reward_strides, group_id_strides, counted_strides, n_samples,
        )  # fmt: skip
        sizes += same.to(tl.int32)
        sums += tl.where(same, difference, 0.0)
    # At least 1: the numbers of a response that is in no group are not read.
    size = tl.maximum(tl.sum(sizes, 1), 1).to(tl.float64)
    others = tl.maximum(size - 1.0, 1.0)
    total = tl.sum(sums, 1)
    # An infinite reward leaves no mean to compare with.
    total = tl.where(tl.abs(total) < float("inf"), total, float("nan"))
    deviation = total / size
    advantage = total / others if LEAVE_ONE_OUT else deviation

    if STANDARDIZE:
        squares = tl.zeros([BLOCK, OTHERS], tl.float64)
        for first in range(start, end, OTHERS):
            same, difference = compare(
                reward, group, first + tl.arange(0, OTHERS), end, rewards_ptr, group_ids_ptr, counted_ptr,
                reward_strides, group_id_strides, counted_strides, n_samples,
            )  # fmt: skip
            of_other = deviation[:, None] - difference
            squares += tl.where(same, of_other * of_other, 0.0)
        std = tl.sqrt(tl.sum(squares, 1) / (others if UNBIASED else size))
        advantage = tl.where(std == 0.0, 0.0, advantage / (std + number_from(eps, tl.float64)))

    counted = load_counted(counted_ptr, counted_strides, responses, n_samples, inside)
    advantage = tl.where(counted, advantage, 0.0).to(advantages_ptr.dtype.element_ty)
    if tokens_ptr is None:
        tl.store(at(advantages_ptr, advantage_strides, responses, n_samples), advantage, inside)
    else:
        token_rows = at(tokens_ptr, token_strides, responses, n_samples, UNIT)
        advantage_rows = at(advantages_ptr, advantage_strides, responses, n_samples, UNIT)
        # In units, so that the compiler sees what the number of tokens is divisible by.
        n_tokens = n_units * UNIT
        for first in range(tl.program_id(1) * TOKENS, n_tokens, tl.num_programs(1) * TOKENS):
            tokens = first + tl.arange(0, TOKENS)
            there = inside[:, None] & (tokens < n_tokens)[None, :]
            read, written = tokens, tokens
            if token_strides[2] is not None:
                read = tokens.to(tl.int64) * (token_strides[2] >> 1)
                written = tokens.to(tl.int64) * (advantage_strides[2] >> 1)
            valid = tl.load(token_rows[:, None] + read[None, :], there, other=0) != 0
            tl.store(advantage_rows[:, None] + written[None, :], tl.where(valid, advantage[:, None], 0.0), there)
