"""Every kernel that the plan can choose compiles for every target, without a GPU: no spills, and wide loads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core import api
from rl_triton_core.engine import launcher, plan
from rl_triton_core.engine.launcher import KernelCall
from rl_triton_core.testing.compile_only import standing_in
from rl_triton_core.testing.kernels import INTERPRETED

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

# One problem for every tile of the plan: rows, steps, whether time is the first axis.
PROBLEMS = {
    "aligned": (16, 128, False),
    "aligned 2048": (4, 2048, False),
    "aligned 4096": (2, 4096, False),
    "dense": (16, 100, False),
    "dense 512": (8, 501, False),
    "unaligned": (3, 1001, False),
    "walked": (600, 4104, False),
    "walked, few rows": (300, 8192, False),
    "chunks": (2, 16384, False),
    "wide chunks": (1, 1 << 19, False),
    "single steps": (64, 1, True),
    "short time-major": (32, 24, True),
    "time-major 128": (32, 128, True),
    "time-major 256": (32, 256, True),
    "time-major 512": (32, 512, True),
    "time-major chunks": (16, 2048, True),
    "time-major walked": (32 * 132, 600, True),
}
WIDE = {"aligned", "aligned 2048", "aligned 4096", "dense", "dense 512", "walked", "walked, few rows", "chunks"}


@pytest.fixture(autouse=True)
def _an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_device", lambda device: plan.Device(132, 32))
    monkeypatch.setattr(launcher, "DIRECT_LAUNCH", False)


class Compiling:
    """In place of the kernel: compiles what would be launched, and keeps it."""

    def __init__(self) -> None:
        self.kernels: list[Any] = []

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> Any:
            from rl_triton_core.engine import kernels

            self.kernels.append(kernels.scan.warmup(*arguments, grid=grid, **constants))
            return self.kernels[-1]

        return launch


def compiled(problem: str, reverse: bool, backend: str, arch: int | str, dtype: torch.dtype) -> list[Any]:
    rows, steps, time_first = PROBLEMS[problem]
    shape = (steps, rows) if time_first else (rows, steps)
    # Adjacent rows or steps are what matters; the numbers are never read.
    x, resets = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=torch.bool)
    fields, row_fields = (x, x, resets), (torch.empty(rows, dtype=dtype),)
    call = KernelCall(api._BACKWARD if reverse else api._FORWARD, fields, row_fields, 0 if time_first else 1)
    call.kernel = Compiling()
    with standing_in(backend, arch):
        call((*fields, *row_fields))
    return call.kernel.kernels


def spilled_bytes(kernel: Any, folder: Path) -> int:
    """What the compiler had to keep in local memory."""
    if "amdgcn" in kernel.asm:
        return sum(int(n) for n in re.findall(r"_spill_count: *(\d+)", kernel.asm["amdgcn"]))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton brings no cuobjdump")
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    report = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"(?:STACK|LOCAL):(\d+)", report)
    assert found, report
    return sum(int(n) for n in found)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_compiles_for_hopper(problem: str, reverse: bool, tmp_path: Path) -> None:
    kernels = compiled(problem, reverse, "cuda", 90, torch.float32)
    assert len(kernels) == (2 if "chunks" in problem else 1)
    for kernel in kernels:
        assert spilled_bytes(kernel, tmp_path) == 0
        if problem in WIDE:
            assert len(re.findall(r"ld\.global\S*\.v4", kernel.asm["ptx"])) >= 2


@pytest.mark.parametrize("problem", ["aligned", "dense", "chunks"])
def test_half_precision_loads_are_wide(problem: str) -> None:
    for kernel in compiled(problem, True, "cuda", 90, torch.bfloat16):
        assert re.search(r"ld\.global\S*\.v4", kernel.asm["ptx"])


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 80), ("cuda", 100), ("hip", "gfx942")])
@pytest.mark.parametrize("problem", ["aligned", "aligned 4096", "dense", "chunks", "time-major 128"])
def test_compiles_for_other_targets(problem: str, backend: str, arch: int | str, tmp_path: Path) -> None:
    for kernel in compiled(problem, True, backend, arch, torch.float32):
        assert spilled_bytes(kernel, tmp_path) == 0
