"""Drawn calls of an algorithm, and what must hold of their results in every layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_triton_core.reference import OF_SEQUENCES, SequencesApart
from rl_triton_core.testing.kernels import kernel_device
from rl_triton_core.testing.tolerance import assert_within_rule

# Where episodes end, as `Draw.flags` draws them.
BOUNDARIES = ("none", "all", "first", "last", "random")


class Draw:
    """Draws the tensors of one call of (environments, steps), on the CPU; the same ones for the same shape and seed."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int | None = None) -> None:
        self.shape, self.dtype = shape, dtype
        self.generator = torch.Generator().manual_seed(shape[0] * 7919 + shape[-1] if seed is None else seed)

    def numbers(self, shape: tuple[int, ...] | None = None) -> Tensor:
        """Normally distributed; one per step unless a shape is given."""
        drawn = torch.randn(self.shape if shape is None else shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.dtype)

    def flags(self, boundaries: str, density: float = 0.1) -> Tensor:
        """Flags as one of BOUNDARIES."""
        flags = torch.zeros(self.shape, dtype=torch.bool)
        if boundaries == "all":
            flags[:] = True
        elif boundaries in ("first", "last"):
            flags[:, 0 if boundaries == "first" else -1] = True
        elif boundaries == "random":
            flags = torch.rand(self.shape, generator=self.generator) < density
        return flags


@dataclass(frozen=True)
class FlagsAtStarts:
    """A function with flags at the first steps of episodes; those of step T come as two tensors instead of a pair."""

    function: Callable[..., Any]

    def __call__(
        self, *, next_start: Tensor | None = None, next_start_truncated: Tensor | None = None, **given: Any
    ) -> Any:
        behind: Any = next_start
        if given.get("truncateds") is not None and (next_start is not None or next_start_truncated is not None):
            behind = (next_start, next_start_truncated)
        return self.function(**given, boundary="starts_at", next_start=behind)


def with_flags_of_next(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments for `FlagsAtStarts`, with flags of step T that are set for every third row."""
    rows = arguments["terminateds"].shape[0]
    given = arguments | {"next_start": (torch.arange(rows) % 3 == 1)}
    if arguments.get("truncateds") is not None:
        given["next_start_truncated"] = (torch.arange(rows) % 3 == 2).to(torch.int64)
    return given


def time_first(x: Any) -> Any:
    """A per-step tensor with its first two axes exchanged in memory; anything else as it is."""
    return x.transpose(0, 1).contiguous() if isinstance(x, Tensor) and x.dim() >= 2 else x


def with_mask(arguments: dict[str, Any], *, poisoned: bool = True) -> dict[str, Any]:
    """Arguments with a mask that leaves out steps one by one and in runs, whole rows too; what it hides is NaN.

    Rows in turn: every other step is left out, or stretches of several steps, or the last ones, or all, or none.
    """
    shape = arguments["terminateds"].shape
    generator = torch.Generator().manual_seed(shape[0] * 31 + shape[1])
    row, step = torch.arange(shape[0]).unsqueeze(1), torch.arange(shape[1])
    drawn = torch.rand(shape, generator=generator)
    stretches = torch.rand(shape[0], -(-shape[1] // 6), generator=generator).repeat_interleave(6, 1)[:, : shape[1]]
    mask = torch.where(row % 5 == 0, drawn < 0.5, stretches < 0.6)
    mask &= (row % 5 != 2) | (step < shape[1] - shape[1] // 3)
    mask = torch.where(row % 5 == 3, row % 10 == 8, mask) | (row % 5 == 4)
    given = arguments | {"mask": mask}
    for name in ("rewards", "values", "gamma", "lambda_", "log_pi_target", "log_pi_behavior") if poisoned else ():
        if isinstance(x := given.get(name), Tensor):
            given[name] = x.masked_fill(~mask, float("nan"))
    return given


def with_sequences(arguments: dict[str, Any], of_sequences: tuple[str, ...] = OF_SEQUENCES) -> dict[str, Any]:
    """Arguments of (rows, steps) as of `(steps, rows)`, or of `(steps,)` if there is one row, cut into sequences.

    Some are empty, some have one step, and steps that belong to none stand before and behind them all, with NaN in
    what is no flag. What is given of the rows is drawn for every sequence of each; actions, where there are any, stay
    the last axis.
    """
    rows, steps = next(iter(arguments.values())).shape
    generator = torch.Generator().manual_seed(rows * 7 + steps)
    first, end = min(steps // 8, 5), steps - min(steps // 9, 7)
    inner = torch.randint(first, end + 1, (max(steps // 9, 2),), generator=generator).sort().values
    once_more = inner[: len(inner) // 4]
    cu_seqlens = torch.cat([torch.tensor([first]), inner, once_more, once_more + 1, torch.tensor([end])])
    cu_seqlens = cu_seqlens.clamp(first, end).sort().values.to(torch.int64 if rows % 2 else torch.int32)
    outside = torch.ones(steps, dtype=torch.bool)
    outside[first:end] = False

    def packed(name: str, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if name in of_sequences:
            x = torch.stack([x.roll(sequence, -1) for sequence in range(len(cu_seqlens) - 1)])
        else:
            x = x.transpose(0, 1).contiguous()
            if x.is_floating_point():
                x[outside] = float("nan")
        return x.squeeze(1) if rows == 1 else x

    return {name: packed(name, x) for name, x in arguments.items()} | {"cu_seqlens": cu_seqlens, "time_dim": 0}


def assert_packs(
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    arguments: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    of_sequences: tuple[str, ...] = OF_SEQUENCES,
    device: str | None = None,
) -> None:
    """Fail unless a call of (rows, steps), packed by `with_sequences`, gives what its sequences give apart.

    Args:
        function: the public function.
        oracle: the reference of the same signature, with a `dtype` to compute in.
        arguments: named, on the CPU, environment-major.
        dtype: what the outputs must have.
        of_sequences: names of what has a value a row.
        device: where to call it, if not where kernels run.
    """
    given = on_kernel_device(with_sequences(arguments, of_sequences), device)
    assert_obeys_rule_as_given(function, SequencesApart(oracle, of_sequences), given, dtype)


def on_kernel_device(arguments: dict[str, Any], device: str | None = None) -> dict[str, Any]:
    """The arguments with their tensors where kernels run, or on another device."""
    return {name: x.to(device or kernel_device()) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def assert_obeys_rule(
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    arguments: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    device: str | None = None,
) -> None:
    """Fail unless a call obeys the rule environment-major and time-major, and leaves its inputs as they were.

    Args:
        function: the public function; its outputs are laid out like its first argument.
        oracle: the reference of the same signature, with a `dtype` to compute in.
        arguments: named, on the CPU, environment-major; the first is the one whose layout the outputs have. Whatever
            starts with its first two axes counts as one value per step.
        dtype: what the outputs must have.
        device: where to call it, if not where kernels run.
    """
    expected = as_tuple(oracle(**arguments))
    loop = as_tuple(oracle(**arguments, dtype=torch.float32))
    leader = next(iter(arguments))

    def is_per_step(x: Any) -> bool:
        return isinstance(x, Tensor) and x.shape[:2] == arguments[leader].shape[:2]

    for time_dim in (1, 0):
        laid_out = arguments
        if time_dim == 0:
            laid_out = {name: time_first(x) if is_per_step(x) else x for name, x in arguments.items()}
        given = on_kernel_device(laid_out, device)
        before = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
        outputs = as_tuple(function(**given, time_dim=time_dim))
        assert len(outputs) == len(expected)
        for output, reference, loop32 in zip(outputs, expected, loop, strict=True):
            assert output.stride() == given[leader].stride()
            assert_within_rule(output if time_dim == 1 else output.transpose(0, 1), reference, loop32, dtype)
        for name, x in before.items():
            torch.testing.assert_close(given[name], x, rtol=0, atol=0, equal_nan=True)


def assert_obeys_rule_as_given(
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    arguments: dict[str, Any],
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Fail unless one call obeys the rule with its tensors as they lie.

    Args:
        function: the public function.
        oracle: the reference of the same signature, with a `dtype` to compute in; it computes on the CPU.
        arguments: named, tensors where kernels run, in any layout; `time_dim` among them if it is not 1.
        dtype: what the outputs must have.

    Returns:
        The outputs.
    """
    on_cpu = {name: x.cpu() if isinstance(x, Tensor) else x for name, x in arguments.items()}
    expected = as_tuple(oracle(**on_cpu))
    loop = as_tuple(oracle(**on_cpu, dtype=torch.float32))
    outputs = as_tuple(function(**arguments))
    for output, reference, loop32 in zip(outputs, expected, loop, strict=True):
        assert_within_rule(output, reference, loop32, dtype, time_dim=arguments.get("time_dim", 1))
    return outputs


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """One output or several, as several."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def outputs_and_gradients(
    function: Callable[..., Any], leaves: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A call's outputs, and what its differentiable ones' sums of squares give to the leaves that ask for it."""
    outputs = as_tuple(function(**leaves))
    recorded = [y.square().sum() for y in outputs if y.requires_grad]
    wanted = [x for x in leaves.values() if x.requires_grad]
    return outputs, torch.autograd.grad(recorded, wanted) if recorded else ()
