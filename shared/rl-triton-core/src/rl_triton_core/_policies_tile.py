"""Ratios of policies, and the exponential that makes them of log probabilities, as Triton device functions."""

import triton
import triton.language as tl


@triton.jit
def clipped(ratio, bound):
    """min(bound, ratio), and NaN where the ratio is NaN: a minimum might drop it."""
    return tl.where(ratio > bound, bound, ratio)


@triton.jit
def exp(x):
    """e**x, rounded as well as a loop's: what tl.exp approximates in float32 would add up over the steps of an episode.

    x = n * log(2) + rest with |rest| <= log(2) / 2, so e**x = 2**n * e**rest: the power is exact, and of the series of
    e**rest eight terms are left. log(2) is taken in two parts, of which the first makes n * log(2) exact.
    """
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        bounded = tl.minimum(tl.maximum(x, -87.3), 89.0)
        n = tl.floor(bounded * 1.4426950408889634 + 0.5)
        rest = bounded - n * 0.693359375 + n * 2.1219444005469058e-4
        series = 1.0 / 720 + rest * (1.0 / 5040)
        series = 1.0 / 120 + rest * series
        series = 1.0 / 24 + rest * series
        series = 1.0 / 6 + rest * series
        series = 1.0 + (rest + rest * rest * (0.5 + rest * series))
        half_power = ((n.to(tl.int32) + 126) << 23).to(tl.float32, bitcast=True)
        return tl.where(x == x, series * half_power * 2.0, x)
