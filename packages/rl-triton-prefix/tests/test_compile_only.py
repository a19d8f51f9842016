"""The tile compiles for NVIDIA and AMD without a GPU, and keeps everything in registers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rl_triton_core.boundaries import FLAG_CONVENTIONS
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_prefix.api import _PREFIX_SUMS

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

# Shape and time axis of the inputs; features share their flags.
LAYOUTS = {
    "row-major": ((16, 128), 1),
    "chunks": ((2, 16384), 1),
    "time-major": ((128, 32), 0),
    "features": ((8, 64, 48), 1),
}
both_conventions = pytest.mark.parametrize("boundary", FLAG_CONVENTIONS)


def compiled(boundary: str, layout: str, dtype: torch.dtype, backend: str, arch: int | str) -> list[Any]:
    shape, time_dim = LAYOUTS[layout]
    inputs, dones = torch.empty(shape, dtype=dtype), torch.empty(shape[:2], dtype=torch.bool)
    if layout == "features":
        dones = dones.unsqueeze(-1).expand(shape)
    seed_values = inputs.select(time_dim, 0).clone()
    return compiled_kernels(
        _PREFIX_SUMS[boundary], (inputs, dones), (seed_values,), time_dim, backend=backend, arch=arch
    )


@both_conventions
@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiles_without_spills(layout: str, dtype: torch.dtype, backend: str, arch: int | str, boundary: str) -> None:
    kernels = compiled(boundary, layout, dtype, backend=backend, arch=arch)
    assert len(kernels) == (2 if layout == "chunks" else 1)
    for kernel in kernels:
        assert spilled_bytes(kernel) == 0


@both_conventions
@pytest.mark.parametrize("layout", ["row-major", "chunks"])
def test_inputs_are_read_four_at_a_time(layout: str, boundary: str) -> None:
    for kernel in compiled(boundary, layout, torch.float32, "cuda", 90):
        assert re.search(r"ld\.global\S*\.v4", kernel.asm["ptx"])
