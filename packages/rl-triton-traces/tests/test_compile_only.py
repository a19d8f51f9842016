"""The tile compiles for NVIDIA and AMD without a GPU, and keeps everything in registers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rl_triton_core.engine.algorithm import Algorithm
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_traces import api

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

# Shape and time axis of the gradients; features share their flags.
LAYOUTS = {
    "row-major": ((16, 128), 1),
    "chunks": ((2, 16384), 1),
    "time-major": ((128, 32), 0),
    "features": ((8, 64, 48), 1),
}
OTHERS = [api._WEIGHTED, api._REPLACING, api._WEIGHTED_REPLACING, api._DUTCH]


def compiled(
    layout: str, dtype: torch.dtype, backend: str, arch: int | str, algorithm: Algorithm = api._TRACES
) -> list[Any]:
    shape, time_dim = LAYOUTS[layout]
    gradients, dones = torch.empty(shape, dtype=dtype), torch.empty(shape[:2], dtype=torch.bool)
    if layout == "features":
        dones = dones.unsqueeze(-1).expand(shape)
    given = {"gradients": gradients, "dones": dones, "gamma": 0.99, "lambda_": 0.95}
    given |= {"ratios": gradients, "alpha": 0.1}
    fields = [given[field.name] for field in algorithm.fields]
    seed_values = gradients.select(time_dim, 0).clone()
    return compiled_kernels(algorithm, fields, (seed_values,), time_dim, backend=backend, arch=arch)


def assert_compiles_without_spills(layout: str, kernels: list[Any]) -> None:
    assert len(kernels) == (2 if layout == "chunks" else 1)
    for kernel in kernels:
        assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiles_without_spills(layout: str, dtype: torch.dtype, backend: str, arch: int | str) -> None:
    assert_compiles_without_spills(layout, compiled(layout, dtype, backend, arch))


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", OTHERS, ids=lambda algorithm: algorithm.name)
def test_other_traces_compile_without_spills(algorithm: Algorithm, layout: str, backend: str, arch: int | str) -> None:
    assert_compiles_without_spills(layout, compiled(layout, torch.float32, backend, arch, algorithm))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("algorithm", OTHERS, ids=lambda algorithm: algorithm.name)
def test_other_traces_compile_for_other_dtypes(algorithm: Algorithm, dtype: torch.dtype) -> None:
    assert_compiles_without_spills("chunks", compiled("chunks", dtype, "cuda", 90, algorithm))


@pytest.mark.parametrize("layout", ["row-major", "chunks"])
@pytest.mark.parametrize("algorithm", [api._TRACES, *OTHERS], ids=lambda algorithm: algorithm.name)
def test_gradients_are_read_four_at_a_time(algorithm: Algorithm, layout: str) -> None:
    for kernel in compiled(layout, torch.float32, "cuda", 90, algorithm):
        assert re.search(r"ld\.global\S*\.v4", kernel.asm["ptx"])
