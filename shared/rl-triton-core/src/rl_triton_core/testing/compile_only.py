"""Compiling kernels for a GPU that is not there: a stand-in driver that only reports the target."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from rl_triton_core.engine import launcher
from rl_triton_core.engine.algorithm import Algorithm
from rl_triton_core.engine.launcher import KernelCall
from rl_triton_core.engine.plan import Device

_device_numbers: dict[tuple[str, int | str], int] = {}


class StandInDriver:
    """What Triton asks a driver for on the way to a binary; it can neither load nor launch one."""

    def __init__(self, backend: str, arch: int | str, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)
        # Triton keeps what it compiled by the number of the device, without asking again for the target.
        self.device = _device_numbers.setdefault((backend, arch), 1000 + len(_device_numbers))

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def launcher_cls(self, *args: Any) -> Any:
        raise RuntimeError("a stand-in driver compiles; it does not launch")


@contextmanager
def standing_in(backend: str = "cuda", arch: int | str = 90) -> Iterator[StandInDriver]:
    """Make Triton compile for `arch` inside the block, whatever hardware is present."""
    from triton.runtime import driver

    stand_in = StandInDriver(backend, arch, 64 if backend == "hip" else 32)
    before = driver._active
    driver.set_active(stand_in)
    try:
        yield stand_in
    finally:
        driver._active = before


class Compiling:
    """In place of a kernel: compiles what would be launched, and keeps it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.kernels: list[Any] = []

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        def launch(*arguments: Any, **constants: Any) -> Any:
            self.kernels.append(self.kernel.warmup(*arguments, grid=grid, **constants))
            return self.kernels[-1]

        return launch


def compiled_kernels(
    algorithm: Algorithm,
    fields: Sequence[Tensor | float | None],
    row_fields: Sequence[Tensor | None],
    dim: int,
    *,
    backend: str = "cuda",
    arch: int | str = 90,
) -> list[Any]:
    """The kernels that a call would launch on an H200, one per launch, compiled for `arch`.

    The tensors are on the CPU; layouts and dtypes are what matters, and no number is read.
    """
    h200 = Device(multiprocessors=132, warp_size=32)
    with (
        mock.patch.object(launcher, "_device", lambda device: h200),
        mock.patch.object(launcher, "DIRECT_LAUNCH", False),
        standing_in(backend, arch),
    ):
        call = KernelCall(algorithm, fields, row_fields, dim)
        call.kernel = compiling = Compiling(call.kernel)
        call((*fields, *row_fields))
    return compiling.kernels


def spilled_bytes(kernel: Any) -> int:
    """What the compiler had to keep in local memory."""
    if "amdgcn" in kernel.asm:
        # Scalar registers spill into vector registers, which takes no memory.
        report, sizes = kernel.asm["amdgcn"], r"\.private_segment_fixed_size: *(\d+)"
    else:
        report, sizes = _resource_usage(kernel.asm["cubin"]), r"(?:STACK|LOCAL):(\d+)"
    found = re.findall(sizes, report)
    assert found, report
    return sum(int(size) for size in found)


def _resource_usage(cubin: bytes) -> str:
    import pytest
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton brings no cuobjdump")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "--dump-resource-usage", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
