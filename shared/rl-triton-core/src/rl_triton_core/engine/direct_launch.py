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
from torch.autograd import forward_ad


class DirectLaunch:
    """Compiled kernels, ready to be launched on other addresses and numbers.

    `launch(tensors, scalars, log2_decay)` is False if this call has to go the ordinary way.
    """

    def __init__(self, launch: Callable[[Sequence[Tensor], tuple[Any, ...], Any], bool], kernels: list[Any]) -> None:
        self.launch = launch
        # A Triton that unloads a kernel's module together with it would leave the function dangling.
        self.kernels = kernels

    @classmethod
    def of(
        cls,
        compiled: list[tuple[Any, tuple[int, int], tuple[Any, ...]]],
        tensors: Sequence[Tensor],
        layout_arguments: tuple[Any, ...],
        summaries: Callable[[], tuple[Tensor, ...]] | None,
        device_index: int,
    ) -> DirectLaunch | None:
        """Prepare kernels that an ordinary launch has just compiled, each with its grid and its trailing arguments.

        None where this Triton's launcher is not known, or the kernels were compiled for pointers less aligned than
        those that a direct launch admits.
        """
        if not launcher_is_known() or any(tensor.data_ptr() & 15 for tensor in tensors):
            return None
        launches = [
            (run, grid, handles, tail) for kernel, grid, tail in compiled for run, handles in [_launcher(kernel)]
        ]
        launch = _launch_function(launches, layout_arguments, summaries, device_index)
        return cls(launch, [kernel for kernel, _, _ in compiled])


def _launch_function(
    launches: list[tuple[Callable[..., Any], tuple[int, int], tuple[Any, ...], tuple[Any, ...]]],
    layout_arguments: tuple[Any, ...],
    summaries: Callable[[], tuple[Tensor, ...]] | None,
    device_index: int,
) -> Callable[[Sequence[Tensor], tuple[Any, ...], Any], bool]:
    """A closure, since this is the hot path: local names cost less than attributes."""
    outer_strides, inner_strides, inner_sizes, time_strides, action_strides = layout_arguments
    current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    reduce, either, runtime = functools.reduce, operator.or_, _runtime_knobs()
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    enter_calls, leave_calls = _calls_of(enter), _calls_of(leave)

    def launch(tensors: Sequence[Tensor], scalars: tuple[Any, ...], log2_decay: Any) -> bool:
        pointers = tuple([tensor.data_ptr() for tensor in tensors])
        if (
            reduce(either, pointers) & 15
            or current_device() != device_index
            or enter_calls
            or leave_calls
            or runtime.launch_enter_hook is not enter
            or runtime.launch_exit_hook is not leave
        ):
            return False
        addresses = None
        if summaries is not None:
            scratch = summaries()
            addresses = tuple([part.data_ptr() for part in scratch])
        stream = current_stream(device_index)
        for run, (grid_x, grid_y), handles, tail in launches:
            run(
                grid_x, grid_y, 1, stream, *handles, pointers, outer_strides, inner_strides,
                inner_sizes, time_strides, action_strides, addresses, scalars, log2_decay, *tail,
            )  # fmt: skip
        return True

    return launch


def _calls_of(hook: Any) -> Any:
    """Who hangs on a launch hook (a profiler): something that is empty for as long as nobody does.

    A hook is a chain of calls; older ones are one call or None.
    """
    return hook.calls if hasattr(hook, "calls") else () if hook is None else (hook,)


def _launcher(kernel: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What to call, and the arguments between the stream and the kernel's own.

    `run` comes first: reading it loads the binary and fills `function`. Triton 3.6 wraps its C launcher in a method
    that only allocates scratch memory; a kernel that needs none goes past it.
    """
    run = kernel.run
    wrapped = _triton_version() == (3, 6) and hasattr(run, "launch")
    if wrapped and run.global_scratch_size == 0 and run.profile_scratch_size == 0:
        flags = (run.launch_cooperative_grid, run.launch_pdl)
        return run.launch, (kernel.function, *flags, None, None, kernel.packed_metadata, None, None, None)
    return run, (kernel.function, kernel.packed_metadata, None, None, None)


def make_shortcut(call: Any, arguments: Sequence[Any], time_dim: int) -> Callable[[Any, Any], Any] | None:
    """A function (arguments, time_dim) -> outputs, or None where these arguments are not like `arguments`.

    PyTorch compares type, dispatch keys, dtype, device, shape, strides and `requires_grad` of all tensors in one call,
    against the modes and transforms that are active; None is returned where this PyTorch cannot. What it does not look
    at is whether gradients are recorded at the time, so a tensor that might want one has no shortcut.
    """
    if call.algorithm.differentiable and any(tensor.requires_grad for tensor in call.tensors_of(arguments)):
        return None
    try:
        guards = torch._C._dynamo.guards.TensorGuards(
            *call.tensors_of(arguments), dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
    except (AttributeError, TypeError):
        return None
    fit, tensors_of, numbers_of, numbers = guards.check, call.tensors_of, call.numbers_of, call.numbers
    others_of = picker([place for place, value in enumerate(arguments) if not isinstance(value, Tensor)])
    kinds = tuple(map(type, others_of(arguments)))
    function_modes, launch = torch._C._len_torch_function_stack, call.direct.launch
    allocate, current_device = _allocation(call)
    shape, stride, dtype = tuple(call.output_shape), tuple(call.output_stride), call.dtype
    device_index, outputs_wanted = call.device_index, range(call.algorithm.outputs)

    def shortcut(given: Any, given_time_dim: Any) -> Any:
        if given_time_dim is not time_dim or tuple(map(type, others_of(given))) != kinds:
            return None
        tensors = tensors_of(given)
        if not fit(*tensors) or function_modes() or forward_ad._current_level >= 0 or current_device() != device_index:
            return None
        known = call.last_numbers
        if known[0] != numbers_of(given):
            known = numbers(given)
            if known is None:
                return None
        outputs = tuple([allocate(shape, stride, dtype) for _ in outputs_wanted])
        if launch((*tensors, *outputs), known[1], known[2]):
            return outputs
        return call(given)

    return shortcut


def _allocation(call: Any) -> tuple[Callable[..., Tensor], Callable[[], int]]:
    """How to make an unwritten tensor of (shape, stride, dtype) on the current device, and which one that is.

    PyTorch has a way past the dispatcher, where it lets us.
    """
    past_dispatcher = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
    if call.device.type != "cuda":
        return (lambda shape, stride, dtype: call.new_output()), (lambda: int(call.device_index))
    return past_dispatcher or (lambda shape, stride, dtype: call.new_output()), torch._C._cuda_getDevice


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


@functools.cache
def _runtime_knobs() -> Any:
    from triton import knobs

    return knobs.runtime
