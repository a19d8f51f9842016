"""The gate in front of the stopwatch: no figure of a call whose result is wrong.

Results are compared with the sequential definition in float64 or, where rows are too long for a loop, with a vectorised
scan in float64. The tolerance is the rule of `rl_triton_core.testing.tolerance`, relative to the largest value, and
with the float32 loop's error taken from a sample of inputs of the same kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Algorithm, Arguments, Configuration, as_tuple
from benchmarks.whole_arrays import scan_by_doubling

LOOP_SAMPLE_ROWS, LOOP_SAMPLE_STEPS = 64, 1024


class WrongResultError(Exception):
    """A call returned something else than its definition says."""


def expected_outputs(
    algorithm: Algorithm, configuration: Configuration, arguments: Arguments, *, sequential: bool = True
) -> tuple[Tensor, ...]:
    """What a call has to return, in float64."""
    if sequential and algorithm.is_sequential(configuration):
        return _by_definition(algorithm, arguments, torch.float64)
    return as_tuple(algorithm.whole(converted(arguments, torch.float64), scan_by_doubling))


def check(algorithm: Algorithm, configuration: Configuration, outputs: Any, expected: tuple[Tensor, ...]) -> float:
    """Compare the outputs of a call, tensors or arrays; the largest error of any, relative to its largest value.

    Raises:
        WrongResultError: the result is off by more than rounding, or has the wrong shape or count.
    """
    found = [torch.as_tensor(output).to(expected[0].device) for output in as_tuple(outputs)]
    if [output.shape for output in found] != [values.shape for values in expected]:
        raise WrongResultError("wrong result: not the shapes of the reference")
    errors = [0.0]
    for output, values in zip(found, expected, strict=True):
        errors.append(relative_error(output, values))
        allowed = 2 * float32_loop_error(algorithm, _sample(configuration)) + 2 * torch.finfo(output.dtype).eps
        # Written so that NaN fails.
        if not errors[-1] <= allowed:
            raise WrongResultError(f"wrong result: relative error {errors[-1]:.1e}, allowed {allowed:.1e}")
    return max(errors)


def poisoned_call(call: Callable[[], Any], arguments: Arguments) -> Any:
    """The outputs of a call that finds NaN in freed memory."""
    _poison_freed_memory(arguments)
    return call()


def _poison_freed_memory(arguments: Arguments) -> None:
    """Leave NaN where the allocator takes the outputs from, so that an entry never written shows."""
    rewards = next(value for value in arguments.values() if isinstance(value, Tensor) and value.is_floating_point())
    torch.full_like(rewards, torch.nan)


def _sample(configuration: Configuration) -> Configuration:
    """The same kind of inputs, in a size that a loop on the CPU is quick at."""
    rows, steps = min(configuration.rows, LOOP_SAMPLE_ROWS), min(configuration.steps, LOOP_SAMPLE_STEPS)
    return replace(configuration, rows=rows, steps=steps, time_major=False)


@functools.cache
def float32_loop_error(algorithm: Algorithm, configuration: Configuration) -> float:
    """The relative error of the sequential definition in float32."""
    arguments = algorithm.arguments(configuration, torch.device("cpu"))
    single = _by_definition(algorithm, arguments, torch.float32)
    double = _by_definition(algorithm, arguments, torch.float64)
    return max(relative_error(*pair) for pair in zip(single, double, strict=True))


def _by_definition(algorithm: Algorithm, arguments: Arguments, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return as_tuple(algorithm.reference()(**converted(arguments, dtype), dtype=dtype))


def converted(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """The arguments with all floating tensors in another dtype."""
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def relative_error(output: Tensor, expected: Tensor) -> float:
    """Largest difference over largest value."""
    difference = (output.to(torch.float64) - expected).abs().max()
    return float(difference / expected.abs().max().clamp(min=torch.finfo(torch.float64).tiny))
