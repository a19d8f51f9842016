"""The kernels of GAE and of normalisation compile without a GPU, whatever the options."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import pytest
import torch
from rl_triton_core.testing.compile_only import Compiling, compiled_kernels, spilled_bytes, standing_in
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_gae.api import _GAE, _GAE_WITH_TARGETS, _GAE_WITH_TARGETS_LAMBDA
from rl_triton_gae.normalization._launch import launch
from rl_triton_gae.normalization.options import Options
from torch import Tensor

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

# Environments, steps, the time axis, and how many launches a mask takes.
PROBLEMS = [
    (4096, 128, 1, 1),
    (4096, 101, 1, 1),
    (512, 2048, 1, 1),
    (600, 4104, 1, 1),
    (2, 16384, 1, 3),
    (2, 16383, 1, 3),
    (4096, 32, 0, 1),
    (4096, 128, 0, 1),
    (16, 32768, 0, 3),
]


@pytest.mark.parametrize(("rows", "steps", "dim", "launches"), PROBLEMS)
def test_transparent_steps(rows: int, steps: int, dim: int, launches: int) -> None:
    x, flags = tensors(rows, steps, dim)
    fields = (x, x, flags, flags, x, None, 0.99, 0.95, flags)
    behind = (torch.empty(rows, dtype=torch.bool),) * 2
    kernels = compiled_kernels(_GAE_WITH_TARGETS.starts_at, fields, (None, *behind), dim)
    assert len(kernels) == launches
    for kernel in kernels:
        check(kernel, dim)


@pytest.mark.parametrize(("rows", "steps"), [(4096, 128), (2, 16383)])
@pytest.mark.parametrize("continuation", ["last_value", "next_values"])
def test_every_continuation(rows: int, steps: int, continuation: str) -> None:
    x, flags = tensors(rows, steps, 1)
    fields = (x, x, flags, None, None, x if continuation == "next_values" else None, 0.99, 0.95, flags)
    last_value = torch.empty(rows) if continuation == "last_value" else None
    for kernel in compiled_kernels(_GAE.ends_at, fields, (last_value,), 1):
        check(kernel, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("steps", [100, 128])
def test_targets_with_numbers_per_step(steps: int, dtype: torch.dtype) -> None:
    x, flags = tensors(4096, steps, 1)
    x = x.to(dtype)
    (kernel,) = compiled_kernels(_GAE_WITH_TARGETS.ends_at, (x, x, flags, None, None, None, x, x, None), (None,), 1)
    check(kernel, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rows", "steps", "dim", "launches"), PROBLEMS[::2])
def test_two_lambdas(rows: int, steps: int, dim: int, launches: int, dtype: torch.dtype) -> None:
    x, flags = tensors(rows, steps, dim)
    x = x.to(dtype)
    for lambdas in ((0.99, 0.95, 1.0), (x, 0.95, x)):
        fields = (x, x, flags, None, None, None, *lambdas, None)
        kernels = compiled_kernels(_GAE_WITH_TARGETS_LAMBDA.ends_at, fields, (None,), dim)
        assert len(kernels) == min(launches, 2)
        for kernel in kernels:
            check(kernel, dim, spilled=16 if dtype == torch.float64 else 8)


@pytest.mark.parametrize("steps", [5000, 1 << 20, (1 << 20) + 3])
@pytest.mark.parametrize("rows", [None, 8])
def test_packed_sequences(rows: int | None, steps: int) -> None:
    shape = (steps,) if rows is None else (steps, rows)
    x, flags = torch.empty(shape), torch.empty(shape, dtype=torch.bool)
    row_values = (torch.empty(512, *shape[1:]), torch.empty(513, dtype=torch.int32))
    fields = (x, x, flags, None, None, None, 0.99, 0.95, None)
    for kernel in compiled_kernels(_GAE.ends_at.packed_form, fields, row_values, 0):
        check(kernel, 1 if rows is None else 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("with_mask", [False, True])
def test_normalization(with_mask: bool, dtype: torch.dtype) -> None:
    from rl_triton_gae.normalization import _tile

    x = torch.empty(4096, 128, dtype=dtype)
    options = Options(None, unbiased=True, eps=1e-8, shift_mean=True)
    launches = Compiling(_tile.write_moments), Compiling(_tile.write_normalized)
    with (
        mock.patch.object(_tile, "write_moments", launches[0]),
        mock.patch.object(_tile, "write_normalized", launches[1]),
        standing_in(),
    ):
        launch(x, torch.empty(4096, 128, dtype=torch.bool) if with_mask else None, options, dtype)
    for compiling in launches:
        (kernel,) = compiling.kernels
        assert spilled_bytes(kernel) == 0
        assert re.search(r"ld\.global\S*v[24]", kernel.asm["ptx"])


def tensors(rows: int, steps: int, dim: int) -> tuple[Tensor, Tensor]:
    """Numbers and flags; only their shapes matter."""
    shape = (rows, steps) if dim else (steps, rows)
    return torch.empty(shape), torch.empty(shape, dtype=torch.bool)


def check(kernel: Any, dim: int, *, spilled: int = 8) -> None:
    # Two registers of a lane, with Triton 3.9, where marks and maps of long rows are live at once.
    assert spilled_bytes(kernel) <= spilled
    if dim:
        assert re.search(r"ld\.global\S*v[24]", kernel.asm["ptx"])
