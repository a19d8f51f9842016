"""The lambda-return's kernels compile for NVIDIA and AMD without a GPU, and spill nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_lambda.api import _LAMBDA_RETURNS

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("time_dim", [1, 0], ids=["row-major", "time-major"])
@pytest.mark.parametrize("options", ["nothing", "everything"])
def test_compiles_without_spills(options: str, time_dim: int, backend: str, arch: int | str) -> None:
    shape = (16, 128) if time_dim == 1 else (128, 32)
    # The numbers are never read.
    x, flags = torch.empty(shape), torch.empty(shape, dtype=torch.bool)
    fields: tuple[Any, ...] = (x, x, flags, None, None, 0.99, 0.95, None)
    if options != "nothing":
        fields = (x, x, flags, flags, x, x, x, flags)
    (kernel,) = compiled_kernels(_LAMBDA_RETURNS.ends_at, fields, (), time_dim, backend=backend, arch=arch)
    assert spilled_bytes(kernel) == 0
