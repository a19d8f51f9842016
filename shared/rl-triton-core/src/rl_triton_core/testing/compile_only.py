"""Compiling kernels for a GPU that is not there: a stand-in driver that only reports the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class StandInDriver:
    """What Triton asks a driver for on the way to a binary; it can neither load nor launch one."""

    def __init__(self, backend: str, arch: int | str, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

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
