"""What the machine itself can do in this run: one elementwise addition, copy bandwidth, an empty launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Configuration
from benchmarks.timing import device_time

COPIED_ELEMENTS = 2**27


def add_call(configuration: Configuration, device: torch.device) -> Callable[[], Tensor]:
    """A float32 `torch.add` of the same shape."""
    x, y = (torch.randn(configuration.shape, device=device) for _ in range(2))
    return partial(torch.add, x, y)


def copy_bandwidth(device: torch.device, elements: int = COPIED_ELEMENTS) -> float:
    """Bytes a second, read and written, of the fastest of a few Triton copies of half a gigabyte."""
    from benchmarks.reference_kernels import copy

    source = torch.randn(elements, device=device)
    target = torch.empty_like(source)

    def copy_call(block: int, warps: int) -> Callable[[], Any]:
        grid = (-(-elements // block),)
        return lambda: copy[grid](source, target, elements, BLOCK=block, num_warps=warps)

    tiles = ((1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8))
    fastest = min(device_time(copy_call(*tile), calls=20).value for tile in tiles)
    if not torch.equal(source, target):
        raise RuntimeError("the copy kernel did not copy")
    return 2 * elements * source.element_size() / (fastest * 1e-6)


def empty_launch_time() -> float:
    """Microseconds on the device of a kernel that does nothing."""
    from benchmarks.reference_kernels import empty

    return device_time(lambda: empty[(1,)](1)).value
