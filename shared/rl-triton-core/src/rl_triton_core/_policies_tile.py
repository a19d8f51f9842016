"""Ratios of policies, as a Triton device function."""

import triton
import triton.language as tl


@triton.jit
def clipped(ratio, bound):
    """min(bound, ratio), and NaN where the ratio is NaN: a minimum might drop it."""
    return tl.where(ratio > bound, bound, ratio)
