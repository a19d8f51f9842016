"""Device functions for ratios of policies: on a GPU, and in the interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from rl_triton_core.testing.kernels import kernel_device, kernel_marks
from rl_triton_core.testing.tolerance import assert_within_rule

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
exp = pytest.importorskip("rl_triton_core._policies_tile").exp

pytestmark = kernel_marks()
DEVICE = kernel_device()


@triton.jit
def store_exp(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    from_here = tl.arange(0, BLOCK)
    tl.store(y_ptr + from_here, exp(tl.load(x_ptr + from_here)))


def test_exponentials_are_rounded_as_well_as_a_loops() -> None:
    """Within every factor of two, by the rule."""
    for start in range(-86, 89, 3):
        x = torch.linspace(start, start + math.log(2.0), 1024)
        y = torch.empty_like(x, device=DEVICE)
        store_exp[(1,)](x.to(DEVICE), y, BLOCK=1024, enable_fp_fusion=True)
        assert_within_rule(y, x.double().exp(), x.exp(), torch.float32, time_dim=0)
    specials = torch.tensor([0.0, -0.0, 1000.0, -1000.0, math.inf, -math.inf, math.nan, 3e38])
    y = torch.empty_like(specials, device=DEVICE)
    store_exp[(1,)](specials.to(DEVICE), y, BLOCK=8, enable_fp_fusion=True)
    torch.testing.assert_close(y.cpu(), specials.exp(), rtol=0, atol=0, equal_nan=True)
