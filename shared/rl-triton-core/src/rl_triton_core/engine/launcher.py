"""One call of an algorithm on the GPU: what the kernel is called with, and the ordinary launch.

Everything that depends on shapes, strides and dtypes alone is worked out once per combination; `direct_launch` is the
short way back to it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rl_triton_core.engine import layout
from rl_triton_core.engine.algorithm import Algorithm, Field
from rl_triton_core.engine.direct_launch import DirectLaunch, picker
from rl_triton_core.engine.environment import DIRECT_LAUNCH, INTERPRETER
from rl_triton_core.engine.plan import Device, make_plan
from rl_triton_core.engine.precision import (
    Weights,
    accumulation_dtype,
    composite_weights,
    float32_parts,
    log2_of,
)
from rl_triton_core.engine.tiles import SHORT_ROW

_INT32_ELEMENTS = 2**31 - 2**16


class KernelCall:
    """One call of an algorithm for fixed shapes, strides, dtypes and device; the tensors and numbers may change.

    Everything that does not depend on the tensors' addresses is worked out here, once.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        fields: Sequence[Tensor | float | None],
        row_fields: Sequence[Tensor | None],
        dim: int,
        out: tuple[Tensor, ...] = (),
    ) -> None:
        from rl_triton_core.engine import kernels

        self.kernel = kernels.scan
        self.algorithm = algorithm
        first = fields[0]
        assert isinstance(first, Tensor)
        tensors = [field if isinstance(field, Tensor) else None for field in fields]
        described = list(zip((*tensors, *row_fields), (*algorithm.fields, *algorithm.row_fields), strict=True))
        self.device, self.device_index = first.device, first.get_device()
        self.dtype = algorithm.output_dtype((*fields, *row_fields))
        self.double = accumulation_dtype(self.dtype) == torch.float64
        self.uniform = algorithm.uniform_decay is not None and all(
            t is None for t, field in zip(tensors, algorithm.fields, strict=True) if field.numbers
        )
        arguments = (*fields, *row_fields)
        self.tensors_of = picker([i for i, value in enumerate(arguments) if isinstance(value, Tensor)])
        self.numbers_of = picker([i for i, value in enumerate(arguments) if isinstance(value, float)])
        self.ranges = self.numbers_of([field.numbers for field in (*algorithm.fields, *algorithm.row_fields)])
        output = layout.empty_output(first, self.dtype)
        self.output_shape, self.output_stride = output.shape, output.stride()
        written = [tensor.stride() for tensor in out] or [self.output_stride] * algorithm.outputs
        self.steps = first.shape[dim]
        self.rows = first.numel() // max(self.steps, 1)
        self.is_empty = first.numel() == 0
        self.needs_copy = False
        self.has_mask = algorithm.takes_mask and tensors[-1] is not None
        # Which axis of each argument is neither batch nor actions: its time, its sequences, or none.
        sequence_dim = dim if algorithm.packed else None
        self.axes: list[int | None] = [dim] * len(tensors)
        self.axes += [0 if field.offsets else sequence_dim for field in algorithm.row_fields]
        all_strides = [self._strides(t, field, axis) for (t, field), axis in zip(described, self.axes, strict=True)]
        strides, row_strides = all_strides[: len(tensors)], all_strides[len(tensors) :]
        offsets = row_fields[-1] if algorithm.packed else None
        self.sequences = None if offsets is None else len(offsets) - 1
        folded = [layout.fold_batch(self.output_shape, stride, dim) for stride in written]
        # Else the kernel writes contiguous outputs, whose numbers are then copied to where they belong.
        self.writes_in_place = all(strides is not None for strides in folded)
        if not self.writes_in_place:
            self.output_stride = torch.empty(self.output_shape, device="meta").stride()
            folded = [layout.fold_batch(self.output_shape, self.output_stride, dim)] * algorithm.outputs
        output_strides = [strides for strides in folded if strides is not None]
        step_strides = [
            s for s, (_, field) in zip(strides, described, strict=False) if s is not None and not field.wide
        ]
        step_strides += output_strides
        self.actions = _Actions.of(
            [(t, s) for (t, field), s in zip(described, (*strides, *row_strides), strict=True) if field.wide]
        )
        self.contiguous = _time_is_contiguous(step_strides, self.steps)
        self.unit = _unit(self.steps, step_strides) if self.contiguous else 1
        dense = self.contiguous and all(_follow_each_other(s, self.rows, self.steps) for s in step_strides)
        # Wide tensors are found by the row and its step, which dense groups do not tell.
        dense = dense and not self.actions.number
        # Rows of packed sequences have steps in common, so that none can be laid behind another.
        dense = dense and not (algorithm.packed and self.rows > 1)
        far = any(
            s.extent(self.rows, self.steps) >= _INT32_ELEMENTS for s in (*strides, *row_strides, *output_strides) if s
        )
        self.plan = make_plan(
            max(self.rows, 1),
            max(self.steps, 1),
            contiguous=self.contiguous,
            unit=self.unit,
            dense=dense,
            # A mask and what it makes scan twice keep as much of a step as a second output does.
            outputs=max(algorithm.outputs, 2 if self.has_mask else 1),
            actions=self.actions.number,
            action_unit=self.actions.unit,
            device=_device(self.device),
        )
        # No more than a lane loads at once, so that no kernel is compiled for a difference that it cannot use.
        self.unit = 1 if self.plan.dense else min(self.unit, self.plan.steps)
        self._make_arguments(strides, row_strides, output_strides, far)
        self.direct: DirectLaunch | None = None
        self.shortcut: Callable[[Any, Any], Any] | None = None
        # Read and replaced as one object, since threads share a call.
        self.last_numbers: tuple[tuple[float, ...], tuple[Any, ...], Any] | None = None

    def _strides(self, tensor: Tensor | None, field: Field, dim: int | None) -> layout.Strides | None:
        if tensor is None:
            return None
        strides = layout.fold_axes(tensor.shape, tensor.stride(), dim, wide=field.wide)
        if strides is not None:
            return strides
        self.needs_copy = True
        contiguous = torch.empty(tensor.shape, device="meta").stride()
        return layout.fold_axes(tensor.shape, contiguous, dim, wide=field.wide)

    def _make_arguments(
        self,
        strides: list[layout.Strides | None],
        row_strides: list[layout.Strides | None],
        output_strides: list[layout.Strides],
        far: bool,
    ) -> None:
        """The kernel's arguments that are not addresses or numbers, in the order of its signature."""
        import triton.language as tl

        from rl_triton_core.engine import affine_tile, kernels, paired_tile

        algorithm, plan = self.algorithm, self.plan
        weights, weight_dtype = composite_weights(self.dtype, self.uniform)
        self.weight_dtype = weight_dtype
        length = groups = -(-max(self.steps, 1) // plan.steps)
        if plan.dense:
            length = self.steps
        slots = _Slots(self.unit, self.actions.unit, adjacent_rows=not self.contiguous)
        # Tensors have their places in the order of the arguments, the wide ones among the others.
        fields: list[_Slot | None] = []
        row_fields: list[_Slot | None] = []
        wide: list[_Slot | None] = []
        for field, s in zip(algorithm.fields, strides, strict=True):
            if field.wide:
                wide.append(slots.add_wide(s, kernels.OF_STEP))
            elif s is not None or not field.mask:
                fields.append(slots.add(s, field))
        sequences = None
        for field, s in zip(algorithm.row_fields, row_strides, strict=True):
            if field.offsets:
                sequences = slots.add_row_value(s, field, packed=True)
            elif field.wide:
                wide.append(slots.add_wide(s, kernels.OF_SEQUENCE if algorithm.packed else kernels.OF_ROW))
            else:
                row_fields.append(slots.add_row_value(s, field, packed=algorithm.packed))
        output_slots = tuple([slots.add(s) for s in output_strides])
        self.layout_arguments = slots.arguments()
        self.size_arguments = (
            *(1.0 / length, self.rows, self.steps // self.unit, groups, plan.rows_per_tile),
            *(self.actions.number // self.actions.unit, self.sequences),
        )
        tile = algorithm.load_tile()
        number = tl.float64 if self.double else tl.float32
        forms = affine_tile if algorithm.recursions == 1 else paired_tile
        maps = forms.MAPS[weights.value]
        if self.has_mask:
            maps = {**maps, **forms.WITH_TRANSPARENT_STEPS[weights.value]}
        self.constants: dict[str, Any] = {
            "FIELDS": tuple(fields),
            "WIDE": tuple(wide),
            "ROW_FIELDS": tuple(row_fields),
            "SEQUENCES": sequences,
            "OUTPUTS": output_slots,
            "COEFFICIENTS": tile.coefficients,
            "EMIT": tile.emit,
            "DERIVE": tile.derive,
            "REVERSE": algorithm.reverse,
            "STARTS": _starts(algorithm),
            "ROLES": _roles(algorithm) if self.has_mask else None,
            "N_FIELDS": len(fields) - self.has_mask,
            "N_LOADED": len(fields),
            "N_WIDE": len(wide),
            "N_DERIVED": algorithm.derived,
            "N_ROW_FIELDS": len(row_fields),
            "N_OUTPUTS": algorithm.outputs,
            **maps,
            "NUMBER": number,
            "WEIGHT": tl.float64 if weight_dtype == torch.float64 else tl.float32,
            "INDEX": tl.int64 if far else tl.int32,
            "STEPS": plan.steps,
            "VECTOR": self.contiguous,
            "EVEN": plan.dense or plan.steps == 1 or (self.contiguous and self.steps % plan.steps == 0),
            "UNIT": self.unit,
            "ACTIONS": self.actions.walked(plan.actions),
            "ROWS": plan.columns,
            "LANES": plan.lanes,
            "TILES": plan.tiles,
            "CHUNKS": plan.most_chunks,
            "DENSE": plan.dense,
        }
        self.log_weights = weights is Weights.LOG

    def __call__(self, arguments: Sequence[Any], out: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...] | None:
        """Run on the values of the fields and then the row fields, into `out` where the call was prepared for one.

        Returns the outputs, or None if a number is out of range (which the caller then says with its name).
        """
        numbers = self.numbers(arguments)
        if numbers is None:
            return None
        in_place = self.writes_in_place
        outputs = out if out and in_place else tuple([self.new_output() for _ in range(self.algorithm.outputs)])
        if self.is_empty:
            return out or outputs
        first = arguments[0]
        if self.needs_copy:
            arguments = self._copied(arguments)
        tensors = (*self.tensors_of(arguments), *outputs)
        if self.direct is None or not self.direct.launch(tensors, numbers[1], numbers[2]):
            self._ordinary(tensors, numbers[1], numbers[2])
        if in_place:
            return outputs
        if out:
            return tuple([mine.copy_(output) for mine, output in zip(out, outputs, strict=True)])
        return tuple([layout.laid_out_like(output, first) for output in outputs])

    def numbers(self, arguments: Sequence[Any]) -> tuple[tuple[float, ...], tuple[Any, ...], Any] | None:
        """The call's numbers, how the kernel takes them, and the logarithm of each one decay; None if out of range."""
        numbers = self.numbers_of(arguments)
        last = self.last_numbers
        if last is None or last[0] != numbers:
            if not all(low <= number <= high for number, (low, high, _) in zip(numbers, self.ranges, strict=True)):
                return None
            self.last_numbers = last = (numbers, *self._scalars(arguments, numbers))
        return last

    def new_output(self) -> Tensor:
        """An unwritten output, laid out like the first argument."""
        return torch.empty_strided(self.output_shape, self.output_stride, dtype=self.dtype, device=self.device)

    def _scalars(self, arguments: Sequence[Any], numbers: tuple[float, ...]) -> tuple[tuple[Any, ...], Any]:
        """The numbers as the kernel takes them, and the logarithm of the one decay, if there is one.

        A field that came as a tensor leaves its number unread.
        """
        floats = tuple(
            [
                value if isinstance(value, float) else 0.0
                for value, field in zip(arguments, self.algorithm.fields, strict=False)
                if field.numbers
            ]
        )
        derived = self.algorithm.derived_numbers
        if derived is not None:
            floats += derived(floats)
        scalars = tuple([float32_parts(number) if self.double else (number,) for number in floats])
        if not self.log_weights:
            return scalars, 0.0
        assert self.algorithm.uniform_decay is not None
        decay = self.algorithm.uniform_decay(numbers)
        return scalars, log2_of(decay) if isinstance(decay, float) else tuple(map(log2_of, decay))

    def _copied(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments with copies of those that the kernel cannot walk in place."""
        return [
            layout.in_place_or_copied(field.name, value, axis, wide=field.wide)[0]
            if isinstance(value, Tensor)
            else value
            for (field, value), axis in zip(self.algorithm.described(arguments), self.axes, strict=True)
        ]

    def summaries(self) -> tuple[Tensor, ...]:
        """Scratch for the map (A, B) of every chunk and recursion, and with a mask for its mark (code, value)."""
        count = self.plan.chunks * self.rows
        number = torch.float64 if self.double else torch.float32
        dtypes = (self.weight_dtype, number) * self.algorithm.recursions + (
            (torch.int32, number) if self.has_mask else ()
        )
        return tuple([torch.empty(count, dtype=dtype, device=self.device) for dtype in dtypes])

    def _launches(self) -> list[tuple[tuple[int, int], int]]:
        """Grid and what to write, per launch."""
        from rl_triton_core.engine import kernels

        programs, chunks = self.plan.programs, self.plan.chunks
        if not chunks:
            return [((programs, 1), kernels.OUTPUT.value)]
        # Nothing follows the last chunk that would read of it.
        summarised = [kernels.MARKS.value] * self.has_mask + [kernels.MAPS.value]
        return [*(((programs, chunks - 1), what) for what in summarised), ((programs, chunks), kernels.OUTPUT.value)]

    def _ordinary(self, tensors: tuple[Tensor, ...], scalars: tuple[Any, ...], log2_decay: Any) -> None:
        """Launch through Triton, and keep what a direct launch needs if this one fits one."""
        compiled: list[tuple[Any, tuple[int, int], tuple[Any, ...]]] = []
        summaries = self.summaries if self.plan.chunks else None
        scratch = None if summaries is None else summaries()
        with _on_device(self.device):
            for grid, summarise in self._launches():
                kernel = self.kernel[grid](
                    tensors, *self.layout_arguments, scratch, scalars, log2_decay, *self.size_arguments,
                    **self.constants, SUMMARISE=summarise, num_warps=self.plan.warps, enable_fp_fusion=True,
                )  # fmt: skip
                compiled.append((kernel, grid, (*self.size_arguments, *self.constants.values(), summarise)))
        if self.direct is None and DIRECT_LAUNCH and not INTERPRETER:
            self.direct = DirectLaunch.of(compiled, tensors, self.layout_arguments, summaries, self.device_index)


class _Actions(NamedTuple):
    """The last axis of a call's wide tensors: its length, and the unit of it and of all their strides."""

    number: int
    unit: int

    @classmethod
    def of(cls, wide: list[tuple[Tensor | None, layout.Strides | None]]) -> _Actions:
        """The unit is what a vector access needs to know: 1 unless actions are adjacent everywhere."""
        number = next((tensor.shape[-1] for tensor, _ in wide if tensor is not None), 0)
        strides = [s for _, s in wide if s is not None]
        if not number or any(s.action != 1 for s in strides):
            return cls(number, 1)
        return cls(number, math.gcd(8, number, *(n for s in strides for n in (s.outer, s.inner or 0, s.time))))

    def walked(self, block: int) -> tuple[int, bool, bool, int]:
        """How a kernel walks them; see its `derive_at`."""
        return block, self.number <= block, self.number % block == 0, self.unit


# A tensor's layout as the kernel takes it: outer stride, inner stride, inner size, and strides of time and actions.
_Layout: TypeAlias = tuple[int | None, int | None, int | None, int | None, int | None]
_Slot: TypeAlias = tuple[int, int, bool, int | bool]


class _Slots:
    """Collects the distinct layouts of a call's tensors, and says where each tensor and its layout are found.

    Tensors that lie alike share a layout, so a call of one layout passes one stride and computes one offset.
    """

    def __init__(self, unit: int, action_unit: int, adjacent_rows: bool) -> None:
        self.unit, self.action_unit, self.adjacent_rows = unit, action_unit, adjacent_rows
        self.layouts: list[_Layout] = []
        self.tensors = 0

    def add(self, strides: layout.Strides | None, field: Field | None = None) -> _Slot | None:
        """A slot for the next per-step tensor, a number unless its field says otherwise."""
        if strides is None:
            return None
        unit = self.unit
        outer = None if self.adjacent_rows and strides.outer == 1 and strides.inner is None else strides.outer // unit
        inner = None if strides.inner is None else strides.inner // unit
        return self._slot((outer, inner, strides.inner_size, strides.time, None), _kind(field))

    def add_row_value(self, strides: layout.Strides | None, field: Field, *, packed: bool) -> _Slot | None:
        """A slot for the next tensor with one value a row, or (`packed`) a sequence."""
        if strides is None:
            return None
        outer = None if strides.outer == 1 and strides.inner is None else strides.outer
        time = strides.time if packed else None
        return self._slot((outer, strides.inner, strides.inner_size, time, None), _kind(field))

    def add_wide(self, strides: layout.Strides | None, of: Any) -> _Slot | None:
        """A slot for the next tensor with a value for every action of what the kernel calls OF_STEP and so on."""
        if strides is None:
            return None
        from rl_triton_core.engine import kernels

        unit = self.action_unit
        inner = None if strides.inner is None else strides.inner // unit
        time = None if of is kernels.OF_ROW else strides.time // unit
        return self._slot((strides.outer // unit, inner, strides.inner_size, time, strides.action), of.value)

    def _slot(self, laid_out: _Layout, kind: int | bool) -> _Slot:
        if laid_out not in self.layouts:
            self.layouts.append(laid_out)
        self.tensors += 1
        return self.tensors - 1, self.layouts.index(laid_out), laid_out[2] is not None, kind

    def arguments(self) -> tuple[Any, ...]:
        """Outer strides, inner strides, inner sizes, and strides of time and actions, one of each per layout."""
        outer, inner, sizes, time, action = (tuple(part) for part in zip(*self.layouts, strict=True))
        # Triton compiles apart for integers that are 1 or multiples of 16, inside tuples against all wishes; an odd
        # number is neither (but for a stride of 0, an expanded view). The kernel halves it again.
        odd = tuple([None if stride is None else 2 * stride + 1 for stride in outer])
        actions = action if any(stride is not None for stride in action) else None
        return (odd, inner, sizes, time, actions) if any(sizes) else (odd, None, None, time, actions)


def _starts(algorithm: Algorithm) -> tuple[int | None, ...] | None:
    """For every field that a step has, which row value is the flag behind its last one; None where none is moved."""
    if not algorithm.start_flags:
        return None
    rows = _places(algorithm.row_fields)
    behind = {flag: rows[name] for flag, name in algorithm.start_flags}
    return tuple([behind.get(name) for name in _places(algorithm.fields)])


def _roles(algorithm: Algorithm) -> tuple[int | None, ...]:
    """Where a kernel with a mask finds what it has to look behind transparent steps for; see its `scan`."""
    names = ("terminateds", "truncateds", "bootstrap_values", "next_values", "values")
    return (*map(_places(algorithm.fields).get, names), _places(algorithm.row_fields).get("last_value"))


def _places(fields: Iterable[Field]) -> dict[str, int]:
    """Where a step or a row's values hold each field; wide ones are not among them."""
    return {field.name: place for place, field in enumerate(field for field in fields if not field.wide)}


def _kind(field: Field | None) -> int:
    """What a field holds, as the kernel says it; a number where there is no field."""
    from rl_triton_core.engine import kernels

    kind = kernels.REAL if field is None or field.is_real else kernels.FLAG if field.flag else kernels.ACTION
    value: int = kind.value
    return value


def _on_device(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _device(device: torch.device) -> Device:
    if device.type != "cuda":
        return Device(multiprocessors=1, warp_size=32)
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.multi_processor_count, properties.warp_size)


def _time_is_contiguous(strides: list[layout.Strides], steps: int) -> bool:
    """Whether more of the per-step tensors have adjacent steps than adjacent rows.

    A row shorter than a vector is walked as if rows were adjacent: its lanes then load no padding.
    """
    along_time = sum(s.time == 1 for s in strides)
    along_rows = sum((s.outer if s.inner is None else s.inner) == 1 for s in strides)
    return steps >= SHORT_ROW and along_time >= along_rows


def _follow_each_other(strides: layout.Strides, rows: int, steps: int) -> bool:
    """Whether each row begins in memory where the one before it ends."""
    return strides.time == 1 and strides.inner_size is None and (rows == 1 or strides.outer == steps)


def _unit(steps: int, strides: list[layout.Strides]) -> int:
    """The largest of 8, 4 and 1 that divides the row length and every row stride."""
    for unit in (8, 4):
        if steps % unit == 0 and all(s.outer % unit == 0 and (s.inner or 0) % unit == 0 for s in strides):
            return unit
    return 1
