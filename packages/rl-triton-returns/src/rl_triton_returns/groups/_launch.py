"""A call of compute_group_advantages on the GPU: what its kernel is launched with."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from rl_triton_core.engine.precision import float32_parts
from torch import Tensor, cuda

from rl_triton_returns.groups.options import Options

# The number of pairs of responses above which comparing them takes longer than sorting and summing: reckoned, not
# measured. With ids, every response is compared with every other, up to 16384 of them.
MOST_PAIRS = 1 << 28
# Responses and tokens are counted in 32 bits, with room for a stride of the loops over them.
MOST_COUNTED = 2**31 - 2**19

# A program's tile, and about how many programs fill a GPU.
BLOCK, OTHERS, TOKENS = 4, 128, 256
PROGRAMS = 1024


def serves(rewards: Tensor, group_ids: Tensor | None, tokens: Tensor | None) -> bool:
    """Whether the kernel is the way to compute so many responses."""
    responses, length = rewards.numel(), 1 if tokens is None else tokens.shape[-1]
    compared = rewards.shape[-1] if group_ids is None else responses
    return responses * compared <= MOST_PAIRS and max(responses, length) <= MOST_COUNTED


def launch(
    rewards: Tensor,
    group_ids: Tensor | None,
    counted: Tensor | None,
    tokens: Tensor | None,
    options: Options,
    advantages: Tensor,
) -> Tensor:
    """Write the advantages of checked arguments, of which there is at least one, into `advantages`, of any strides."""
    from rl_triton_returns.groups import _tile

    responses, axes = rewards.numel(), rewards.dim()
    length = 1 if tokens is None else tokens.shape[-1]
    adjacent = tokens is not None and tokens.stride(-1) == 1 == advantages.stride(-1)
    unit = _unit(length, (*tokens.stride()[:-1], *advantages.stride()[:-1])) if tokens is not None and adjacent else 1
    by_response = (_strides(x, axes) for x in (rewards, group_ids, counted))
    by_token = (_strides(x, axes, unit, adjacent=adjacent) for x in (tokens, advantages))
    blocks = -(-responses // BLOCK)
    # Programs that share responses do the same comparisons, so no more than fill the GPU.
    shares = max(1, min(PROGRAMS // blocks, -(-length // TOKENS)))
    context: Any = cuda.device(rewards.device) if rewards.is_cuda else contextlib.nullcontext()
    with context:
        _tile.group_advantages[(blocks, shares)](
            rewards, group_ids, counted, tokens, advantages, *by_response, *by_token,
            responses, rewards.shape[-1], length // unit, float32_parts(options.eps),
            UNIT=unit, LEAVE_ONE_OUT=options.leave_one_out, STANDARDIZE=options.standardize, UNBIASED=options.unbiased,
            BLOCK=BLOCK, OTHERS=OTHERS, TOKENS=TOKENS, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return advantages


def _strides(tensor: Tensor | None, axes: int, unit: int = 1, *, adjacent: bool = False) -> tuple[int | None, ...]:
    """The strides of prompts, samples and, where there are tokens, those, as the kernel takes them.

    Triton compiles apart for integers that are 1 or multiples of 16, inside tuples against all wishes; an odd number is
    neither (but for a stride of 0), and the kernel halves it again.
    """
    if tensor is None:
        return ()
    strides = (0,) * (2 - axes) + tensor.stride()
    odd = [2 * (stride // unit) + 1 for stride in strides[:2]]
    return (*odd, None if adjacent or len(strides) == 2 else 2 * strides[2] + 1)


def _unit(tokens: int, strides: Sequence[int]) -> int:
    """What vector accesses want the number of tokens and the strides of rows to be divisible by, or else 1."""
    return 8 if all(size % 8 == 0 for size in (tokens, *strides)) else 1
