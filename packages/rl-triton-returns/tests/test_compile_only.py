"""The discounted return's kernels compile for NVIDIA and AMD without a GPU, and spill nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_returns.api import _DISCOUNTED_RETURNS

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("time_dim", [1, 0], ids=["row-major", "time-major"])
@pytest.mark.parametrize("options", ["nothing", "last_value", "everything"])
def test_compiles_without_spills(options: str, time_dim: int, backend: str, arch: int | str) -> None:
    shape = (16, 128) if time_dim == 1 else (128, 32)
    # The numbers are never read.
    x, flags = torch.empty(shape), torch.empty(shape, dtype=torch.bool)
    fields: tuple[Any, ...] = (x, flags, None, None, 0.99, None)
    if options == "everything":
        fields = (x, flags, flags, x, x, flags)
    last_value = torch.empty(shape[1 - time_dim]) if options == "last_value" else None
    (kernel,) = compiled_kernels(
        _DISCOUNTED_RETURNS.ends_at, fields, (last_value,), time_dim, backend=backend, arch=arch
    )
    assert spilled_bytes(kernel) == 0
