"""The one rule for how far a result may be from the truth.

    |actual - reference| <= 2 * (largest error of a float32 loop) + 2 ulp(dtype) * max |reference|

The reference is a sequential loop in float64, the other loop the same in float32 on the same inputs. A float64 result
has the second term alone, times log2 of the number of steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def assert_within_rule(
    actual: Tensor, reference64: Tensor, loop32: Tensor, dtype: torch.dtype, *, time_dim: int = 1
) -> float:
    """Fail unless `actual` obeys the rule, with NaN and inf exactly where the reference has them.

    Args:
        actual: the result under test.
        reference64: the oracle's result in float64.
        loop32: the oracle's result in float32, ignored for float64 results.
        dtype: what `actual` must have, and whose ulp counts.
        time_dim: the time axis of all three.

    Returns:
        The largest error as a fraction of what is allowed, for benchmarks and reports.
    """
    assert actual.dtype == dtype, f"expected {dtype}, got {actual.dtype}"
    assert actual.shape == reference64.shape, f"expected shape {tuple(reference64.shape)}, got {tuple(actual.shape)}"
    actual, reference64, loop32 = actual.detach().cpu(), reference64.detach().cpu(), loop32.detach().cpu()
    representable = reference64.to(dtype)
    torch.testing.assert_close(_kind(actual), _kind(representable), msg=lambda m: f"NaN or inf elsewhere:\n{m}")

    finite = representable.isfinite()
    if not finite.any():
        return 0.0
    errors = (actual.double() - reference64)[finite].abs()
    ulps = 2 * torch.finfo(dtype).eps * float(reference64[finite].abs().max())
    if dtype == torch.float64:
        allowed = ulps * max(1.0, math.log2(actual.shape[time_dim]))
    else:
        allowed = ulps + 2 * float((loop32.double() - reference64)[finite].abs().max())
    worst = float(errors.max())
    ratio = 0.0 if worst == 0 else worst / allowed if allowed > 0 else math.inf
    assert ratio <= 1, f"error {worst:.3e} is {ratio:.2f} times the allowed {allowed:.3e}"
    return ratio


def _kind(x: Tensor) -> Tensor:
    """0 where finite, 1 where NaN, 2 and 3 where plus and minus infinity."""
    return x.isnan().long() + 2 * x.isposinf().long() + 3 * x.isneginf().long()
