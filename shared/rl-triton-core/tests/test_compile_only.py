"""Every kernel that the plan can choose compiles for every target, without a GPU: no spills, and wide loads."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rl_triton_core import api
from rl_triton_core.engine.algorithm import Algorithm, with_flags_at_starts
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

# One problem for every tile of the plan: rows, steps, whether time is the first axis.
PROBLEMS = {
    "aligned": (16, 128, False),
    "aligned 2048": (4, 2048, False),
    "aligned 4096": (2, 4096, False),
    "dense": (17, 101, False),
    "dense 512": (9, 513, False),
    "unaligned": (3, 1001, False),
    "walked": (600, 4104, False),
    "walked, few rows": (300, 8192, False),
    "dense, walked": (600, 4105, False),
    "dense, walked, few rows": (200, 8191, False),
    "chunks": (2, 16384, False),
    "dense chunks": (3, 16383, False),
    "wide chunks": (1, 1 << 19, False),
    "single steps": (64, 1, True),
    "short time-major": (32, 24, True),
    "time-major 128": (32, 128, True),
    "time-major 256": (32, 256, True),
    "time-major 512": (32, 512, True),
    "time-major chunks": (16, 2048, True),
    "time-major chunks of 256": (16, 32768, True),
    "time-major chunks of 512": (16, 65536, True),
    "time-major chunks, four rows": (4, 2048, True),
    "time-major long chunks, four rows": (4, 131072, True),
    "time-major long chunks, two rows": (2, 1 << 19, True),
    "time-major walked": (48 * 132, 600, True),
    "short time-major walked": (96 * 132, 160, True),
}
# One register of 512 threads, with Triton 3.6; or one or two for the sake of twice the programs, with Triton 3.9.
SPILLS = {
    *("time-major chunks of 512", "time-major long chunks, four rows", "time-major long chunks, two rows"),
    *("dense, walked", "dense, walked, few rows"),
}
WIDE = {name for name, (_, _, time_first) in PROBLEMS.items() if not time_first and name != "unaligned"}


def compiled(
    problem: str, reverse: bool, backend: str, arch: int | str, dtype: torch.dtype, algorithm: Algorithm | None = None
) -> list[Any]:
    rows, steps, time_first = PROBLEMS[problem]
    shape = (steps, rows) if time_first else (rows, steps)
    # Adjacent rows or steps are what matters; the numbers are never read.
    x, resets = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.bool)
    if problem == "unaligned":
        x = torch.empty(rows, steps + 1, dtype=dtype)[:, :-1]
    algorithm = algorithm or (api._BACKWARD if reverse else api._FORWARD)
    row_fields: tuple[torch.Tensor, ...] = (torch.empty(rows, dtype=dtype),)
    if algorithm.start_flags:
        row_fields += (torch.empty(rows, dtype=torch.bool),)
    return compiled_kernels(algorithm, (x, x, resets), row_fields, 0 if time_first else 1, backend=backend, arch=arch)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_compiles_for_hopper(problem: str, reverse: bool) -> None:
    kernels = compiled(problem, reverse, "cuda", 90, torch.float32)
    assert len(kernels) == (2 if "chunks" in problem else 1)
    for kernel in kernels:
        assert spilled_bytes(kernel) <= (8 if problem in SPILLS else 0)
        # A state that every lane computes for all others shows as a hundred stores to shared memory, or more.
        assert len(re.findall(r"st\.shared", kernel.asm["ptx"])) < 80
        if problem in WIDE:
            assert len(re.findall(r"ld\.global\S*\.v4", kernel.asm["ptx"])) >= 2


@pytest.mark.parametrize("problem", ["aligned", "dense", "unaligned", "walked", "dense chunks", "time-major 128"])
def test_flags_at_starts_compile(problem: str) -> None:
    at_starts = with_flags_at_starts(api._BACKWARD)
    for kernel in compiled(problem, True, "cuda", 90, torch.float32, at_starts):
        assert spilled_bytes(kernel) == 0
        if problem in WIDE:
            # Flags are moved in registers: they are loaded as wide as ever, eight bytes a lane.
            assert re.search(r"ld\.global\S*(v2\.b32|b64|v8\.b8|v4\.b16)", kernel.asm["ptx"])


@pytest.mark.parametrize("problem", ["aligned", "dense", "dense, walked", "chunks", "dense chunks"])
def test_half_precision_loads_are_wide(problem: str) -> None:
    for kernel in compiled(problem, True, "cuda", 90, torch.bfloat16):
        assert re.search(r"ld\.global\S*\.v4", kernel.asm["ptx"])


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 80), ("cuda", 100), ("hip", "gfx942")])
@pytest.mark.parametrize(
    "problem", ["aligned", "aligned 4096", "dense", "dense 512", "chunks", "dense chunks", "time-major 128"]
)
def test_compiles_for_other_targets(problem: str, backend: str, arch: int | str) -> None:
    for kernel in compiled(problem, True, backend, arch, torch.float32):
        assert (kernel.metadata.target.backend, kernel.metadata.target.arch) == (backend, arch)
        assert spilled_bytes(kernel) == 0


def test_each_target_gets_its_own_kernel() -> None:
    for backend, arch, binary in (("cuda", 90, "cubin"), ("hip", "gfx942", "hsaco"), ("cuda", 80, "cubin")):
        (kernel,) = compiled("aligned", True, backend, arch, torch.float32)
        assert (kernel.metadata.target.backend, kernel.metadata.target.arch) == (backend, arch)
        assert binary in kernel.asm
