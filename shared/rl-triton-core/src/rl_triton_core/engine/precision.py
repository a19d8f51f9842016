"""Which precision a call works in: what it accumulates in, what it returns, and how a composite's weight is held."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from enum import Enum

import torch
from torch import Tensor


class Weights(Enum):
    """How a composite map holds the product of its decays; the kernels' affine module has the three forms."""

    PRODUCT = "product"
    POWER = "power"
    LOG = "log"


def result_dtype(tensors: Iterable[Tensor]) -> torch.dtype:
    """The promoted dtype of all real inputs; an integer one counts as float32."""
    dtype: torch.dtype | None = None
    for tensor in tensors:
        counted = tensor.dtype if tensor.dtype.is_floating_point else torch.float32
        dtype = counted if dtype is None else torch.promote_types(dtype, counted)
    return dtype or torch.float32


def accumulation_dtype(result: torch.dtype) -> torch.dtype:
    """float64 if any input is, else float32."""
    return torch.float64 if result == torch.float64 else torch.float32


def widest_dtype(like: Tensor) -> torch.dtype:
    """What products that compound are held in: float64, where the tensor's device has it."""
    return like.dtype if like.device.type == "mps" else torch.float64


def composite_weights(result: torch.dtype, uniform: bool) -> tuple[Weights, torch.dtype]:
    """How weights are held so that the error stays within twice that of a float32 loop.

    Repeated squaring doubles a weight's relative error at every level of the tree: near a decay of 1 that is several
    times the loop's error from some 500 steps on. float16 and bfloat16 results round far above it.
    """
    if result == torch.float64:
        return (Weights.POWER if uniform else Weights.PRODUCT), torch.float64
    if result != torch.float32:
        return (Weights.POWER if uniform else Weights.PRODUCT), torch.float32
    return (Weights.LOG, torch.float32) if uniform else (Weights.PRODUCT, torch.float64)


def log2_of(decay: float) -> float:
    """log2 of a decay in [0, 1], finite also for 0: exp2 of any multiple of it is 0."""
    return math.log2(decay) if decay > 0.0 else -1.0e30


def float32_parts(number: float) -> tuple[float, float, float]:
    """A float64 as a sum of three float32s, exact to the last bit; kernels take Python floats as float32.

    Beyond the range of float32 it is infinite, as it is for a kernel that takes it as one float32.
    """
    high = _rounded(number)
    if not math.isfinite(high):
        return high, 0.0, 0.0
    middle = _rounded(number - high)
    return high, middle, _rounded(number - high - middle)


def _rounded(number: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded
