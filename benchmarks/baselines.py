"""What else computes the same: the calls that ours are seen against, each held to the same oracle before it is timed.

torch.compile    the scan by doubling, compiled in a fresh process for every shape
eager loop       one fused multiply and add per step; what needs no loop is done on whole tensors before
NumPy            the same loop over arrays on the CPU
NumPy via GPU    arrays to the GPU, our function, and its outputs back
TorchRL          where it is installed
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle import converted
from benchmarks.registry import Algorithm, Arguments, Configuration, Measure, as_tuple
from benchmarks.whole_arrays import Scan, as_numpy, scan_by_doubling, scan_by_loop

LONGEST_LOOP = 4096
Call = Callable[[], Any]


@dataclass(frozen=True)
class Baseline:
    """Another implementation.

    Attributes:
        name: as in tables.
        option: as on the command line.
        measures: what is measured of it on a GPU.
        make: the call for an algorithm and its arguments.
        own_process: whether a call runs in a process that has run nothing else.
        on_cpu: whether it is measured without a GPU too.
        longest: the most steps that are worth waiting for.
    """

    name: str
    option: str
    measures: tuple[Measure, ...]
    make: Callable[[Algorithm, Arguments], Call]
    own_process: bool = False
    on_cpu: bool = True
    longest: int | None = None

    def covers(self, algorithm: Algorithm, configuration: Configuration, device: torch.device) -> bool:
        """Whether there is anything to measure."""
        if self.longest is not None and configuration.steps > self.longest:
            return False
        if self.option in ("loop", "numpy") and not algorithm.has_loop:
            return False
        if self.option == "torchrl" and (algorithm.torchrl is None or not is_installed("torchrl")):
            return False
        if self.option.startswith("numpy") and (configuration.dtype == torch.bfloat16 or not is_installed("numpy")):
            return False
        return self.on_cpu or device.type == "cuda"


def is_installed(module: str) -> bool:
    """Whether an optional module can be imported."""
    return importlib.util.find_spec(module) is not None


def in_float32(algorithm: Algorithm, scan: Scan, arguments: Arguments) -> tuple[Tensor, ...]:
    """The whole-array form, computed in float32 and returned in the dtype of its inputs."""
    tensors = [x for x in arguments.values() if isinstance(x, Tensor) and x.is_floating_point()]
    outputs = as_tuple(algorithm.whole(converted(arguments, torch.float32), scan))
    return tuple(output.to(tensors[0].dtype) for output in outputs)


def compiled(algorithm: Algorithm, arguments: Arguments) -> Call:
    call = torch.compile(partial(in_float32, algorithm, scan_by_doubling), dynamic=False, fullgraph=True)
    return lambda: call(arguments)


def eager_loop(algorithm: Algorithm, arguments: Arguments) -> Call:
    return lambda: in_float32(algorithm, scan_by_loop, arguments)


def numpy_loop(algorithm: Algorithm, arguments: Arguments) -> Call:
    arrays = as_numpy(arguments)
    return lambda: algorithm.whole(arrays, scan_by_loop)


def numpy_through_gpu(algorithm: Algorithm, arguments: Arguments) -> Call:
    arrays, function = as_numpy(arguments), algorithm.function()
    device = next(x.device for x in arguments.values() if isinstance(x, Tensor))
    names = [name for name, x in arguments.items() if isinstance(x, Tensor)]

    def call() -> tuple[Any, ...]:
        tensors = {name: torch.from_numpy(arrays[name]).to(device) for name in names}
        return tuple(output.cpu().numpy() for output in as_tuple(function(**(arrays | tensors))))

    return call


def torchrl(algorithm: Algorithm, arguments: Arguments) -> Call:
    assert algorithm.torchrl is not None
    return algorithm.torchrl(arguments)


BASELINES = (
    Baseline("torch.compile", "compile", ("device", "full call"), compiled, own_process=True),
    Baseline("eager loop", "loop", ("full call",), eager_loop, longest=LONGEST_LOOP),
    Baseline("TorchRL", "torchrl", ("full call",), torchrl, longest=LONGEST_LOOP),
    Baseline("NumPy", "numpy", ("wall",), numpy_loop, longest=LONGEST_LOOP),
    Baseline("NumPy via GPU", "numpy_via_gpu", ("wall",), numpy_through_gpu, on_cpu=False),
)
BY_OPTION = {baseline.option: baseline for baseline in BASELINES}
