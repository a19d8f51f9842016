"""The short way to a kernel that was compiled before.

An ordinary Triton launch looks at every argument again to find the compiled kernel; that costs several times the launch
itself. A direct launch keeps the kernel and goes straight to its C launcher. Whatever could make that binary the wrong
one is either fixed for the call that owns the launch (shapes, strides, dtypes, device, which arguments are there), or
asked on every call and sends it the ordinary way: a pointer that is not 16-byte aligned, another current device, a
launch hook. A shortcut asks the rest as well: whether these arguments are like the last ones in every respect.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class DirectLaunch:
    """Compiled kernels, ready to be launched on other addresses and numbers."""

    def __init__(
        self,
        launches: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]],
        layout_arguments: tuple[Any, ...],
        summaries: Callable[[], tuple[Tensor, Tensor] | None],
        device_index: int,
        kernels: list[Any],
    ) -> None:
        self.launches = launches
        self.layout_arguments = layout_arguments
        self.summaries = summaries
        self.device_index = device_index
        # A Triton that unloads a kernel's module together with it would leave the function dangling.
        self.kernels = kernels

    @classmethod
    def of(
        cls,
        compiled: list[tuple[Any, tuple[int, int], tuple[Any, ...]]],
        tensors: Sequence[Tensor],
        layout_arguments: tuple[Any, ...],
        summaries: Callable[[], tuple[Tensor, Tensor] | None],
        device_index: int,
    ) -> DirectLaunch | None:
        """Prepare kernels that an ordinary launch has just compiled, each with its grid and its trailing arguments.

        None where this Triton's launcher is not known, or the kernels were compiled for pointers less aligned than
        those that a direct launch admits.
        """
        if not launcher_is_known() or any(tensor.data_ptr() & 15 for tensor in tensors):
            return None
        launches = [(*_launcher(kernel, grid), tail) for kernel, grid, tail in compiled]
        return cls(launches, layout_arguments, summaries, device_index, [kernel for kernel, _, _ in compiled])

    def launch(self, tensors: Sequence[Tensor], scalars: tuple[Any, ...], log2_decay: float) -> bool:
        """Launch on these tensors; False if this call has to go the ordinary way."""
        pointers = tuple([tensor.data_ptr() for tensor in tensors])
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits & 15 or torch._C._cuda_getDevice() != self.device_index or hooks_are_set():
            return False
        summaries = self.summaries()
        scratch = None if summaries is None else (summaries[0].data_ptr(), summaries[1].data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(self.device_index)
        for run, grid, handles, tail in self.launches:
            run(*grid, stream, *handles, pointers, *self.layout_arguments, scratch, scalars, log2_decay, *tail)
        return True


def _launcher(kernel: Any, grid: tuple[int, int]) -> tuple[Callable[..., Any], tuple[int, int, int], tuple[Any, ...]]:
    """What to call, its grid, and the arguments between the stream and the kernel's own.

    `run` comes first: reading it loads the binary and fills `function`. Triton 3.6 wraps its C launcher in a method
    that only allocates scratch memory; a kernel that needs none goes past it.
    """
    run = kernel.run
    if _triton_version() == (3, 6) and hasattr(run, "launch"):
        if run.global_scratch_size == 0 and run.profile_scratch_size == 0:
            flags = (run.launch_cooperative_grid, run.launch_pdl)
            return run.launch, (*grid, 1), (kernel.function, *flags, None, None, kernel.packed_metadata, None, None, None)
    return run, (*grid, 1), (kernel.function, kernel.packed_metadata, None, None, None)


def make_shortcut(call: Any, arguments: Sequence[Any], time_dim: int) -> Callable[[Any, Any], Any] | None:
    """A function (arguments, time_dim) -> outputs, or None where these arguments are not like `arguments`.

    PyTorch compares type, dispatch keys, dtype, device, shape, strides and need of a gradient of all tensors in one
    call, against the modes and transforms that are active; None is returned where this PyTorch cannot.
    """
    try:
        guards = torch._C._dynamo.guards.TensorGuards(
            *call.tensors_of(arguments), dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
    except (AttributeError, TypeError):
        return None
    fit, tensors_of, kinds = guards.check, call.tensors_of, tuple(map(type, arguments))
    function_modes = torch._C._len_torch_function_stack
    numbers, new_outputs, direct, ordinary = call.numbers, call.new_outputs, call.direct, call

    def shortcut(given: Any, given_time_dim: Any) -> Any:
        if given_time_dim is not time_dim or tuple(map(type, given)) != kinds:
            return None
        tensors = tensors_of(given)
        if not fit(*tensors) or function_modes():
            return None
        known = numbers(given)
        if known is None:
            return None
        outputs = new_outputs(given)
        if direct.launch((*tensors, *outputs), known[1], known[2]):
            return outputs
        return ordinary(given)

    return shortcut


def picker(places: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that picks the entries at these places, as a tuple."""
    if len(places) == 0:
        return lambda arguments: ()
    if len(places) == 1:
        place = places[0]
        return lambda arguments: (arguments[place],)
    return operator.itemgetter(*places)


@functools.cache
def launcher_is_known() -> bool:
    """Whether this Triton's launcher takes what we pass; a newer one is not trusted, and said so once."""
    if (3, 6) <= _triton_version() <= (3, 9):
        return True
    import triton

    warnings.warn(
        f"Triton {triton.__version__} is not one of the versions whose launcher is known (3.6 to 3.9); "
        "calls take Triton's ordinary, slower launch",
        UserWarning,
        stacklevel=2,
    )
    return False


@functools.cache
def _triton_version() -> tuple[int, ...]:
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2])


def hooks_are_set() -> bool:
    """Whether somebody (a profiler) wants to see every launch."""
    runtime = _runtime_knobs()
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


@functools.cache
def _runtime_knobs() -> Any:
    from triton import knobs

    return knobs.runtime
