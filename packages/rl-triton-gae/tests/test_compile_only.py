"""The kernels of GAE compile without a GPU, with transparent steps and targets too."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_gae.api import _GAE, _GAE_WITH_TARGETS
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


def tensors(rows: int, steps: int, dim: int) -> tuple[Tensor, Tensor]:
    """Numbers and flags; only their shapes matter."""
    shape = (rows, steps) if dim else (steps, rows)
    return torch.empty(shape), torch.empty(shape, dtype=torch.bool)


def check(kernel: Any, dim: int) -> None:
    # Two registers of a lane, with Triton 3.9, where marks and maps of long rows are live at once.
    assert spilled_bytes(kernel) <= 8
    if dim:
        assert re.search(r"ld\.global\S*v[24]", kernel.asm["ptx"])
