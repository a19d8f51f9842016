"""The kernels of compute_vtrace compile without a GPU for NVIDIA and AMD, and spill nothing."""

from __future__ import annotations

import pytest
import torch
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_vtrace import api
from torch import Tensor

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("layout", ["row-major", "time-major"])
@pytest.mark.parametrize("option", ["last_value", "bootstrap_values", "next_values", "per-step", "leak"])
def test_compiles_without_spills(option: str, layout: str, backend: str, arch: int | str) -> None:
    rows, steps = 32, 128
    x = torch.empty((rows, steps) if layout == "row-major" else (steps, rows))
    flags = torch.empty(x.shape, dtype=torch.bool)
    given: dict[str, Tensor | float] = dict.fromkeys(("rewards", "values", "log_pi_target", "log_pi_behavior"), x)
    given |= {"terminateds": flags, **dict.fromkeys(("rho_bar", "c_bar", "pg_rho_bar"), 1.0)}
    given |= dict.fromkeys(("gamma", "lambda_"), x if option == "per-step" else 0.99)
    if option in ("bootstrap_values", "next_values"):
        given |= {"truncateds": flags, option: x}
    given["leak"] = 0.5
    algorithm = (api._LEAKY_VTRACE if option == "leak" else api._VTRACE).ends_at
    fields = [given.get(field.name) for field in algorithm.fields]
    last_value = torch.empty(rows) if option in ("last_value", "per-step", "leak") else None
    (kernel,) = compiled_kernels(
        algorithm, fields, (last_value,), 1 if layout == "row-major" else 0, backend=backend, arch=arch
    )
    assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_and_long_rows_compile_without_spills(dtype: torch.dtype) -> None:
    x = torch.empty(2, 16384, dtype=dtype)
    fields = (x, x, x, x, torch.empty(x.shape, dtype=torch.bool), None, None, None, 0.99, 1.0, 1.0, 1.0, 1.0, None)
    kernels = compiled_kernels(api._VTRACE.ends_at, fields, (x[:, 0],), 1)
    assert len(kernels) == 2
    for kernel in kernels:
        assert spilled_bytes(kernel) == 0
