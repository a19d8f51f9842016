"""A call of normalize_advantages on the GPU: the two launches, and between them the ranks of a group."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from rl_triton_core.engine.precision import float32_parts
from torch import Tensor, cuda

from rl_triton_gae.normalization._torch import Moments, merged, of_ranks
from rl_triton_gae.normalization.options import Options

# Elements of a program's block; how many programs take moments, all of which every program of the second launch reads;
# and about how many programs fill a GPU.
BLOCK = 2048
MOST_COLUMNS = 512
PROGRAMS = 2048


def launch(advantages: Tensor, mask: Tensor | None, options: Options, dtype: torch.dtype) -> Tensor:
    """Checked advantages on the GPU, of which there is at least one, normalised in `dtype`."""
    from rl_triton_gae.normalization import _tile

    normalized = torch.empty_like(advantages, dtype=dtype)
    values = _laid_out_like(normalized, advantages)
    valid = None if mask is None else _laid_out_like(normalized, mask)
    size = values.numel()
    blocks = -(-size // BLOCK)
    columns = min(blocks, MOST_COLUMNS)
    moments = torch.empty(3, columns, dtype=torch.float64, device=values.device)
    context: Any = cuda.device(values.device) if values.is_cuda else contextlib.nullcontext()
    with context:
        _tile.write_moments[(columns,)](values, valid, moments, size, BLOCK=BLOCK, num_warps=4)
        if options.group is not None:
            moments = torch.stack(of_ranks(merged(Moments(*moments)), options.group))
        _tile.write_normalized[(min(blocks, PROGRAMS),)](
            values, valid, moments, normalized, float32_parts(options.eps), size, moments.shape[1],
            UNBIASED=options.unbiased, SHIFT_MEAN=options.shift_mean,
            COLUMNS=1 << (moments.shape[1] - 1).bit_length(), BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return normalized


def _laid_out_like(normalized: Tensor, x: Tensor) -> Tensor:
    """x with the dense strides of the result: itself, if it has these."""
    return x if x.stride() == normalized.stride() else torch.empty_like(normalized, dtype=x.dtype).copy_(x)
