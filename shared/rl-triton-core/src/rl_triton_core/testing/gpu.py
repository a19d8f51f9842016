"""What must hold of a call on a GPU, whatever it computes: captured, compiled, differentiated, waiting for nothing.

`function` takes its tensors by these names, and all but them is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.compile_ahead import warmup
from rl_triton_core.testing.calls import as_tuple, outputs_and_gradients
from rl_triton_core.testing.integration import assert_writes_outputs_of, drawn_by_name

Given = dict[str, Tensor]

STEPS = 300


def assert_captures(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless a call that was warmed up is captured without another one, and replayed with new data."""
    given = drawn_by_name(names, STEPS)
    first, second = _on_gpu(given), _on_gpu({name: x.flip(0) for name, x in given.items()})
    static = {name: x.clone() for name, x in first.items()}
    like_static: dict[str, Any] = {name: x.to("meta") for name, x in static.items()}
    warmup(function, **like_static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = as_tuple(function(**static))
    for numbers in (first, second):
        for name, x in numbers.items():
            static[name].copy_(x)
        graph.replay()
        for output, expected in zip(outputs, as_tuple(function(**numbers)), strict=True):
            torch.testing.assert_close(output, expected, rtol=0, atol=0, equal_nan=True)


def assert_warmup_compiles_all(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail if anything is compiled after a warmup: by a call, or by the gradients of a loss or of a plain sum."""
    given = drawn_by_name(names, STEPS)
    for tensors in (_on_gpu(given), _leaves(given)):
        like: dict[str, Any] = {
            name: x.detach().to("meta").requires_grad_(x.requires_grad) for name, x in tensors.items()
        }
        warmup(function, **like)
        compiled = _compiled_kernels()
        for loss in (Tensor.sum, lambda y: y.square().sum()):
            recorded = [y for y in as_tuple(function(**tensors)) if y.requires_grad]
            if recorded:
                torch.autograd.backward([loss(y) for y in recorded])
        assert _compiled_kernels() == compiled


def _compiled_kernels() -> int:
    """How many kernels the current device holds; Triton keeps them first among what it keeps for a device."""
    from rl_triton_core.engine import kernels

    count: int = len(kernels.scan.device_caches[torch.cuda.current_device()][0])
    return count


def assert_runs_on_any_device(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless tensors on another GPU than the current one are computed there, with their gradients."""
    import pytest

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    given = drawn_by_name(names, STEPS)
    here, there = (outputs_and_gradients(function, _leaves(given, f"cuda:{i}")) for i in range(2))
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(there, here, rtol=0, atol=0, check_device=False)
    for _ in range(3):
        # The same shapes on either device in turn, without gradients: what is kept for one must not serve the other.
        for i in range(2):
            found = as_tuple(function(**{name: x.to(f"cuda:{i}") for name, x in given.items()}))
            torch.testing.assert_close(found, tuple(y.detach() for y in here[0]), check_device=False)
            assert {y.device.index for y in found} == {i}


def assert_waits_for_nothing(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail if a call, the first or a later one, or its backward pass waits for the GPU."""
    given = drawn_by_name(names, STEPS)
    plain, leaves = _on_gpu(given), _leaves(given)
    with _no_waiting():
        for _ in range(2):
            function(**plain)
            differentiated = [y for y in as_tuple(function(**leaves)) if y.requires_grad]
            if differentiated:
                torch.autograd.backward(differentiated, [torch.ones_like(y) for y in differentiated])


def assert_gradients_like_the_cpu(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless outputs and gradients are those of the CPU in float64, and float32 ones are close to them."""
    given = drawn_by_name(names, STEPS)
    expected = outputs_and_gradients(function, _leaves(given, "cpu", torch.float64))
    for dtype in (torch.float64, torch.float32):
        found = outputs_and_gradients(function, _leaves(given, "cuda", dtype))
        torch.testing.assert_close(found, expected, check_device=False, check_dtype=False, rtol=1e-4, atol=1e-5)


def assert_compiles_on_gpu(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless a compiled training step has the outputs and gradients of the plain one."""

    def step(**tensors: Tensor) -> tuple[Tensor, ...]:
        scaled = {name: x * 0.5 if x.is_floating_point() else x for name, x in tensors.items()}
        return tuple([output * 2.0 for output in as_tuple(function(**scaled))])

    torch.compiler.reset()
    given = drawn_by_name(names, STEPS)
    results, expected = (
        outputs_and_gradients(call, _leaves(given, dtype=torch.float32))
        for call in (torch.compile(step, fullgraph=True), step)
    )
    torch.testing.assert_close(results, expected)


def assert_writes_into_gpu_buffers(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Fail unless outputs are written into buffers on the GPU, of any strides, by the kernel itself."""
    assert_writes_outputs_of(function, drawn_by_name(names, STEPS, device="cuda"))


@contextmanager
def _no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _on_gpu(given: Given) -> Given:
    return {name: x.cuda() for name, x in given.items()}


def _leaves(given: Given, device: str = "cuda", dtype: torch.dtype | None = None) -> Given:
    """The same on a device, of which every floating tensor is differentiated."""
    leaves = {}
    for name, x in given.items():
        leaves[name] = x.to(device)
        if x.is_floating_point():
            leaves[name] = x.to(device, dtype or x.dtype, copy=True).requires_grad_()
    return leaves
