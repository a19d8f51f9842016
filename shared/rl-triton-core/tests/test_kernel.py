"""The scan kernel against the oracle, on a GPU or (TRITON_INTERPRET=1) in Triton's interpreter.

An ordinary run starts the interpreter in a process of its own, because Triton decides at import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from rl_triton_core import api, reference, segmented_scan
from rl_triton_core.engine import dispatch, launcher, prepared
from rl_triton_core.engine.algorithm import FRACTION, Field, Tile, with_flags_at_starts
from rl_triton_core.engine.environment import INTERPRETER
from rl_triton_core.testing.integration import assert_writes_outputs_of, drawn_by_name
from rl_triton_core.testing.plans import DENSE_STRATEGIES, STRATEGIES, forced_plan
from rl_triton_core.testing.tolerance import assert_within_rule
from torch import Tensor

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

STEPS = (1, 2, 7, 8, 9, 31, 64) if INTERPRETER else (1, 2, 7, 8, 9, 31, 63, 64, 65, 1000, 2048, 4097)
ROWS = (1, 33) if INTERPRETER else (1, 3, 33, 127, 4096)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=["cpu" if INTERPRETER else pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    forget_prepared_calls()
    return str(request.param)


def forget_prepared_calls() -> None:
    prepared._prepared_calls.clear()
    for algorithm in (api._FORWARD, api._BACKWARD):
        algorithm.shortcut.clear()


# The problem: time first, every row with one of five kinds of boundaries, and with decays near or far from one.


@functools.cache
def problem(steps: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(steps)
    shape = (steps, ROWS[-1])
    row = torch.arange(shape[1])
    resets = (torch.rand(shape, generator=generator) < 0.05) & (row % 5 == 0)
    resets |= row % 5 == 2
    resets[0, row % 5 == 3] = True
    resets[-1, row % 5 == 4] = True
    decays = torch.rand(shape, generator=generator)
    return {
        "inputs": torch.randn(shape, generator=generator),
        "decays": torch.where(row % 2 == 0, 0.9 + 0.1 * decays, 1.2 * decays - 0.1),
        "resets": resets,
        "initial": torch.randn(shape[1:], generator=generator),
    }


@functools.cache
def expected(steps: int, reverse: bool) -> tuple[Tensor, Tensor]:
    return oracle(problem(steps), reverse)


def oracle(arguments: dict[str, Any], reverse: bool) -> tuple[Tensor, Tensor]:
    """The truth, and a float32 loop; time first."""
    in_two_precisions = [
        reference.segmented_scan(**arguments, reverse=reverse, time_dim=0, dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    ]
    return in_two_precisions[0], in_two_precisions[1]


# Layouts: how [steps, rows] is handed over, and which axis is time then.


def time_first(x: Tensor) -> tuple[Tensor, int]:
    """In memory also what a transposed [N, T] is."""
    return x.clone(), 0


def batch_first(x: Tensor) -> tuple[Tensor, int]:
    return x.t().contiguous(), 1


def sliced(x: Tensor) -> tuple[Tensor, int]:
    """Every second step of rows of an odd length, from the second on."""
    steps, rows = x.shape
    view = x.new_zeros(rows, 2 * steps + 3)[:, 1 : 2 * steps + 1 : 2]
    return view.copy_(x.t()), 1


def with_features(x: Tensor) -> tuple[Tensor, int]:
    """[N, T, F]: two batch axes around time."""
    features = next(size for size in (3, 4, 1) if x.shape[1] % size == 0)
    return x.unflatten(1, (-1, features)).transpose(0, 1).contiguous(), 1


LAYOUTS: tuple[Callable[[Tensor], tuple[Tensor, int]], ...] = (time_first, batch_first, sliced, with_features)
by_name = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
both_directions = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def laid_out(arguments: dict[str, Any], layout: Callable[[Tensor], tuple[Tensor, int]]) -> tuple[dict[str, Any], int]:
    """The arguments in a layout, and the time axis."""
    changed = dict(arguments)
    dim = 0
    for name in ("inputs", "decays", "resets"):
        if isinstance(arguments.get(name), Tensor):
            changed[name], dim = layout(arguments[name])
    if isinstance(arguments.get("initial"), Tensor):
        shape = changed["inputs"].shape
        changed["initial"] = arguments["initial"].reshape(shape[:dim] + shape[dim + 1 :])
    return changed, dim


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments on a device; views stay views."""

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor) or device == "cpu":
            return x
        extent = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
        flat = x.as_strided((extent,), (1,)).to(device)
        return flat.as_strided(x.shape, x.stride())

    return {name: move(x) for name, x in arguments.items()}


def steps_first(y: Tensor, dim: int) -> Tensor:
    return y.movedim(dim, 0).flatten(1).cpu()


# Outputs: filled with NaN before the kernel writes, and surrounded by numbers that it must not touch.

MARGIN = 64
CANARY = 7.25


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Every buffer that is made for a kernel, checked at the end of the test."""
    buffers: list[Tensor] = []

    def guard(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **options: Any) -> Tensor:
            plain = make(*arguments, **options)
            if not plain.is_floating_point() or plain.is_meta:
                return plain
            extent = sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True)) + 1
            buffer = torch.full((extent + 2 * MARGIN,), CANARY, dtype=plain.dtype, device=plain.device)
            buffers.append(buffer)
            return buffer.as_strided(plain.shape, plain.stride(), MARGIN).fill_(NAN)

        return made

    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, guard(getattr(torch, name)))
    yield buffers
    monkeypatch.undo()
    forget_prepared_calls()
    assert buffers
    for buffer in buffers:
        assert (buffer[:MARGIN] == CANARY).all(), "wrote before the beginning of an output"
        assert (buffer[-MARGIN:] == CANARY).all(), "wrote beyond the end of an output"


def check(
    device: str,
    arguments: dict[str, Any],
    references: tuple[Tensor, Tensor],
    reverse: bool,
    layout: Callable[[Tensor], tuple[Tensor, int]],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Scan on the device, compare by the rule, and see that no argument changed."""
    given, dim = laid_out(arguments, layout)
    given = on(device, given)
    before = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
    y = segmented_scan(**given, reverse=reverse, time_dim=dim)
    assert_within_rule(steps_first(y, dim), references[0], references[1], dtype, time_dim=0)
    for name, x in before.items():
        torch.testing.assert_close(given[name], x, rtol=0, atol=0, equal_nan=True)
    assert y.stride() == given["inputs"].clone().stride()
    return y


@by_name
@both_directions
@pytest.mark.parametrize("steps", STEPS)
def test_against_the_oracle(
    device: str, guarded: list[Tensor], steps: int, reverse: bool, layout: Callable[[Tensor], tuple[Tensor, int]]
) -> None:
    references = expected(steps, reverse)
    for rows in ROWS:
        arguments = {name: x[..., :rows].contiguous() for name, x in problem(steps).items()}
        check(device, arguments, (references[0][:, :rows], references[1][:, :rows]), reverse, layout)


@both_directions
@pytest.mark.parametrize("rows", [3, 16] if INTERPRETER else [3, 4, 16, 24, 127])
@pytest.mark.parametrize("steps", [9, 10, 12, 30] if INTERPRETER else [9, 10, 12, 30, 63, 129, 501, 767, 1001, 4091])
def test_rows_that_share_groups(device: str, guarded: list[Tensor], rows: int, steps: int, reverse: bool) -> None:
    """Rows behind one another without a gap, of lengths that are no multiple of a group."""
    references = expected(steps, reverse)
    arguments = {name: x[..., :rows].contiguous() for name, x in problem(steps).items()}
    check(device, arguments, (references[0][:, :rows], references[1][:, :rows]), reverse, batch_first)


@both_directions
@pytest.mark.parametrize("absent", [("resets",), ("initial",), ("resets", "initial")], ids="-".join)
@pytest.mark.parametrize("steps", [7, 31])
def test_absent_arguments(
    device: str, guarded: list[Tensor], steps: int, absent: tuple[str, ...], reverse: bool
) -> None:
    for layout in (time_first, batch_first):
        arguments = {name: x[..., :8].contiguous() for name, x in problem(steps).items() if name not in absent}
        check(device, arguments, oracle(arguments, reverse), reverse, layout)


@both_directions
# The interpreter truncates to bfloat16 instead of rounding.
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, *([] if INTERPRETER else [torch.bfloat16])], ids=str)
@pytest.mark.parametrize("steps", [64] if INTERPRETER else [7, 64, 1000, 4097])
def test_dtypes(device: str, guarded: list[Tensor], steps: int, dtype: torch.dtype, reverse: bool) -> None:
    arguments = {
        name: x[..., :3].to(dtype) if x.is_floating_point() else x[..., :3].long() for name, x in problem(steps).items()
    }
    references = oracle(arguments, reverse)
    for layout in (time_first, batch_first):
        check(device, arguments, references, reverse, layout, dtype)


def test_mixed_dtypes_and_layouts(device: str) -> None:
    """Each argument has a dtype and a layout of its own."""
    shape = (16, 6)
    inputs, decays = torch.randn(shape[::-1], dtype=torch.float16).t(), torch.rand(shape)
    resets = (torch.rand(16, 1) < 0.2).to(torch.float64).expand(shape)
    arguments = {"inputs": inputs, "decays": decays, "resets": resets, "initial": torch.ones(1).expand(6)}
    y = segmented_scan(**on(device, arguments), time_dim=0)
    references = oracle(arguments, False)
    assert_within_rule(y.cpu(), references[0], references[1], torch.float32, time_dim=0)
    assert y.stride() == inputs.stride()


@both_directions
def test_every_batch_layout(device: str, reverse: bool) -> None:
    """No, one, two and three batch axes in every order in memory, also those that have to be copied."""
    torch.manual_seed(0)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1), (1, 3, 0, 2), (0, 3, 2, 1)):
        axes = sorted(range(4), key=order.__getitem__)
        inputs, decays = (torch.rand([(2, 9, 3, 2)[axis] for axis in order]).permute(axes) for _ in range(2))
        flat = {"inputs": inputs.movedim(1, 0).flatten(1), "decays": decays.movedim(1, 0).flatten(1)}
        references = oracle(flat, reverse)
        for given in ((inputs, decays), (inputs.contiguous(), decays), (inputs, decays.contiguous())):
            moved = on(device, {"inputs": given[0], "decays": given[1]})
            y = segmented_scan(**moved, reverse=reverse)
            assert_within_rule(steps_first(y, 1), references[0], references[1], torch.float32, time_dim=0)
            assert y.stride() == given[0].stride()
    trajectory = {"inputs": flat["inputs"][:, 0], "decays": flat["decays"][:, 0]}
    y = segmented_scan(**on(device, trajectory), reverse=reverse, time_dim=0)
    assert_within_rule(y.cpu(), references[0][:, 0], references[1][:, 0], torch.float32, time_dim=0)


def test_empty_tensors(device: str) -> None:
    for shape in ((0, 5), (3, 0), (0, 0)):
        x = torch.empty(shape, device=device)
        assert segmented_scan(x, x, initial=x.new_empty(shape[:1])).shape == shape
        assert segmented_scan(x, x, reverse=True, time_dim=0).shape == shape


@pytest.mark.skipif(not INTERPRETER, reason="a GPU gets these plans from problems of their size")
@pytest.mark.parametrize("strategy", STRATEGIES)
@both_directions
@pytest.mark.parametrize("steps", [58])
def test_strategies(device: str, guarded: list[Tensor], steps: int, reverse: bool, strategy: str) -> None:
    for layout in (time_first, batch_first):
        arguments = {name: x[..., :6].contiguous() for name, x in problem(steps).items()}
        with forced_plan(strategy):
            check(device, arguments, oracle(arguments, reverse), reverse, layout)


@pytest.mark.skipif(not INTERPRETER, reason="a GPU gets these plans from problems of their size")
@pytest.mark.parametrize("strategy", DENSE_STRATEGIES)
@both_directions
# Programs that end inside groups or (12, whole rows) never do; a tensor that does, and one that does not.
@pytest.mark.parametrize(("rows", "steps"), [(5, 12), (5, 29), (8, 27), (1, 43)])
def test_dense_strategies(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    guarded: list[Tensor],
    rows: int,
    steps: int,
    reverse: bool,
    strategy: str,
) -> None:
    # Once with the offsets of a tensor of more than 2**31 elements.
    monkeypatch.setattr(launcher, "_INT32_ELEMENTS", 0 if rows == 8 else 2**31)
    arguments = {name: x[..., :rows].contiguous() for name, x in problem(steps).items()}
    # Of no concern to the rows around them.
    arguments["inputs"][0, 1::4] = NAN
    arguments["inputs"][-1, 2::4] = INF
    arguments["decays"][-1 if reverse else 0, 3::4] = NAN
    with forced_plan(strategy):
        check(device, arguments, oracle(arguments, reverse), reverse, batch_first)


# Flags at the first steps of segments: what ends a segment stands in the step behind it.

AT_STARTS = dispatch.registered(with_flags_at_starts(api._BACKWARD))


@pytest.mark.skipif(not INTERPRETER, reason="a GPU gets these plans from problems of their size")
@pytest.mark.parametrize("strategy", [*STRATEGIES, *DENSE_STRATEGIES])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float64], ids=str)
@pytest.mark.parametrize(("rows", "steps"), [(5, 29), (8, 24)])
def test_flags_at_starts_under_every_strategy(
    device: str, guarded: list[Tensor], rows: int, steps: int, dtype: torch.dtype, strategy: str
) -> None:
    arguments = {name: x[..., :rows].contiguous() for name, x in problem(steps).items()}
    at_ends = arguments["resets"]
    # Flags of float64 that float32 does not tell from 0; what stands at t = 0 is ignored.
    flags = torch.cat([torch.ones_like(at_ends[:1]), at_ends]).to(dtype) * (True if dtype == torch.bool else 1e-300)
    for layout in (batch_first,) if strategy in DENSE_STRATEGIES else (time_first, batch_first):
        (inputs, dim), (decays, _), (resets, _) = (
            layout(x) for x in (arguments["inputs"], arguments["decays"], flags[:-1])
        )
        for next_start in (flags[-1], None):
            if next_start is None:
                arguments = arguments | {"resets": torch.cat([at_ends[:-1], torch.zeros_like(at_ends[:1])])}
            with forced_plan(strategy):
                (y,) = dispatch.run(AT_STARTS, (inputs, decays, resets), (arguments["initial"], next_start), dim)
            references = oracle(arguments, reverse=True)
            assert_within_rule(steps_first(y, dim), references[0], references[1], torch.float32, time_dim=0)
        arguments = arguments | {"resets": at_ends}


# Containment: what a reset hides may be anything.


@both_directions
@pytest.mark.parametrize("steps", [7, 64] if INTERPRETER else [7, 31, 64, 1000, 4097, 8192])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nan_and_inf_stay_in_their_segment(
    device: str, guarded: list[Tensor], steps: int, bad: float, reverse: bool
) -> None:
    generator = torch.Generator().manual_seed(steps)
    shape = (steps, 24)
    resets = torch.rand(shape, generator=generator) < max(0.02, 3 / steps)
    inputs = torch.randn(shape, generator=generator)
    decays = 1 - 0.01 * torch.rand(shape, generator=generator)
    inputs[torch.rand(shape, generator=generator) < 1 / steps] = bad
    # Behind a cut a decay is not read, and one at the open end only where something comes in.
    decays[resets] = NAN
    decays[torch.rand(shape, generator=generator) < 0.5 / steps] = NAN
    decays[-1 if reverse else 0] = NAN
    arguments = {"inputs": inputs, "decays": decays, "resets": resets}
    references = oracle(arguments, reverse)
    assert references[0].isfinite().any()
    assert not references[0].isfinite().all()
    for layout in (time_first, batch_first):
        check(device, arguments, references, reverse, layout)


@both_directions
def test_an_infinite_decay_stays_in_its_segment(device: str, reverse: bool) -> None:
    torch.manual_seed(0)
    inputs, resets = torch.randn(40, 8), torch.rand(40, 8) < 0.1
    decays = torch.where(torch.rand(40, 8) < 0.05, INF, 0.99)
    arguments = {"inputs": inputs, "decays": decays, "resets": resets}
    truth, _ = oracle(arguments, reverse)
    for layout in (time_first, batch_first):
        given, dim = laid_out(arguments, layout)
        y = steps_first(segmented_scan(**on(device, given), reverse=reverse, time_dim=dim), dim)
        # Whether it makes inf or NaN of what it reaches depends on the order of products.
        assert torch.equal(y.isfinite(), truth.isfinite())
        torch.testing.assert_close(y[y.isfinite()], truth[truth.isfinite()].float())


def test_a_hidden_initial_is_not_read(device: str) -> None:
    ones = torch.ones(2, 16, device=device)
    resets = torch.zeros_like(ones)
    resets[0, 0] = resets[0, -1] = 1
    initial = torch.full((2,), NAN, device=device)
    for reverse in (False, True):
        y = segmented_scan(ones, 0.5 * ones, resets=resets, initial=initial, reverse=reverse)
        assert y[0].isfinite().all()
        assert y[1].isnan().all()


@pytest.mark.parametrize("decay", [1.5, 3.0, 10.0, 1e38])
def test_weights_beyond_range_do_not_make_nan(device: str, decay: float) -> None:
    """Where nothing comes in, a product of decays that overflows has nothing to multiply."""
    for steps in (64,) if INTERPRETER else (64, 512, 4096, 8192):
        inputs = torch.zeros(steps, 2)
        inputs[-1] = 1.0
        arguments = {"inputs": inputs, "decays": torch.full_like(inputs, decay)}
        references = oracle(arguments, False)
        for layout in (time_first, batch_first):
            check(device, arguments, references, False, layout)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float64], ids=str
)
def test_flags_of_any_dtype(device: str, dtype: torch.dtype) -> None:
    flags = torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0, 1, 0]] * 2)
    inputs = torch.arange(20.0).view(2, 10)
    arguments = {"inputs": inputs, "decays": torch.full_like(inputs, 0.5)}
    first = segmented_scan(**on(device, arguments | {"resets": flags != 0}))
    given = flags.to(dtype) if dtype == torch.bool else flags.to(dtype) * (0.5 if dtype.is_floating_point else 2)
    assert torch.equal(segmented_scan(**on(device, arguments | {"resets": given})), first)


def test_what_counts_as_a_set_flag(device: str) -> None:
    inputs = torch.ones(1, 5)
    flags = torch.tensor([[0.0, -0.0, NAN, INF, -1e-30]])
    y = segmented_scan(**on(device, {"inputs": inputs, "decays": inputs, "resets": flags}))
    assert y.tolist() == [[1.0, 2.0, 1.0, 1.0, 1.0]]


def test_a_view_that_negates_is_read_as_it_counts(device: str) -> None:
    """The imaginary part of a conjugate is a real tensor whose memory holds the opposite."""
    inputs = torch.randn(2, 8, dtype=torch.complex64, device=device).conj().imag
    assert inputs.is_neg()
    assert torch.equal(segmented_scan(inputs, torch.zeros_like(inputs)), inputs.clone())


# One number for all decays, which no public function of this package has.


def uniform_scan(reverse: bool) -> Any:
    scan = api._BACKWARD if reverse else api._FORWARD
    decays = Field("decays", required=True, numbers=FRACTION)
    return dataclasses.replace(
        scan,
        name="uniform_scan",
        fields=(scan.fields[0], decays, scan.fields[2]),
        uniform_decay=lambda numbers: numbers[0],
    )


@both_directions
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_one_decay_for_all_steps(device: str, guarded: list[Tensor], dtype: torch.dtype, reverse: bool) -> None:
    algorithm = uniform_scan(reverse)
    for steps in (31,) if INTERPRETER else (7, 64, 1000, 8192):
        torch.manual_seed(steps)
        inputs, resets = torch.randn(steps, 4).to(dtype), torch.rand(steps, 4) < 0.05
        inputs[steps // 2, 0] = NAN
        for decay in (0.0, 0.9, 0.999, 1.0):
            arguments = {"inputs": inputs, "decays": torch.full(inputs.shape, decay, dtype=torch.float64)}
            references = oracle(arguments | {"resets": resets}, reverse)
            for x, flags, dim in ((inputs, resets, 0), (inputs.t().contiguous(), resets.t().contiguous(), 1)):
                fields = (x.to(device), decay, flags.to(device))
                y = steps_first(dispatch.run(algorithm, fields, (None,), dim)[0], dim)
                # A weight of 0 is a cut, and NaN times 0 is NaN to a loop: both are right there.
                compared = slice(1, None) if decay == 0 else slice(None)
                assert_within_rule(
                    y[:, compared], references[0][:, compared], references[1][:, compared], dtype, time_dim=0
                )


# More than one output, which no public function of this package has.


@triton.jit
def emit_state_and_its_neighbour(step, neighbour, at_open_end, row_values, state, neighbour_state, numbers):  # type: ignore[no-untyped-def]
    return state[0], tl.where(at_open_end, 0.0, neighbour_state[0])


def two_outputs(reverse: bool) -> Any:
    scan = api._BACKWARD if reverse else api._FORWARD

    def load_tile() -> Tile:
        return Tile(scan.load_tile().coefficients, emit_state_and_its_neighbour)

    return dataclasses.replace(scan, name="two_outputs", outputs=2, load_tile=load_tile)


def check_two_outputs(device: str, arguments: dict[str, Any], reverse: bool, dtype: torch.dtype) -> None:
    """Both outputs in two layouts, called twice: the second time may take a shorter way."""
    truth, loop = oracle(arguments, reverse)
    shifted = []
    for y in (truth, loop):
        neighbour = y.roll(-1 if reverse else 1, 0)
        neighbour[-1 if reverse else 0] = 0.0
        shifted.append(neighbour)
    for layout in (time_first, batch_first):
        given, dim = laid_out(arguments, layout)
        given = on(device, given)
        fields = tuple(given.get(name) for name in ("inputs", "decays", "resets"))
        algorithm = two_outputs(reverse)
        for _ in range(1 if INTERPRETER else 2):
            outputs = dispatch.run(algorithm, fields, (given.get("initial"),), dim)
            for output, references in zip(outputs, ((truth, loop), shifted), strict=True):
                assert_within_rule(steps_first(output, dim), *references, dtype, time_dim=0)
                assert output.stride() == given["inputs"].clone().stride()


@both_directions
@pytest.mark.parametrize("dtype", [torch.float32, *([] if INTERPRETER else [torch.float16, torch.float64])], ids=str)
@pytest.mark.parametrize("steps", [9] if INTERPRETER else [7, 63, 64, 1000, 8192])
def test_two_outputs(device: str, guarded: list[Tensor], steps: int, dtype: torch.dtype, reverse: bool) -> None:
    arguments = {name: x[..., :4] for name, x in problem(steps).items()}
    for name in ("inputs", "decays", "initial"):
        arguments[name] = arguments[name].to(dtype)
    check_two_outputs(device, arguments, reverse, dtype)


@pytest.mark.skipif(not INTERPRETER, reason="a GPU gets these plans from problems of their size")
@pytest.mark.parametrize("strategy", ["walked", "chunked"])
@both_directions
def test_two_outputs_of_long_rows(device: str, guarded: list[Tensor], strategy: str, reverse: bool) -> None:
    with forced_plan(strategy):
        arguments = {name: x[..., :4] for name, x in problem(31).items()}
        check_two_outputs(device, arguments, reverse, torch.float32)


def test_two_outputs_of_other_layouts(device: str) -> None:
    """Batch axes that do not fold, integer inputs (which the outputs cannot be like), and nothing at all."""
    torch.manual_seed(0)
    three_batch_axes = torch.rand(2, 3, 9, 2).permute(3, 2, 1, 0)
    for inputs in (three_batch_axes, torch.arange(36).view(4, 9), torch.rand(4, 1).expand(4, 9)):
        x, decays = inputs.to(device), torch.full(inputs.shape, 0.5, device=device)
        first, second = dispatch.run(two_outputs(False), (x, decays, None), (None,), 1)
        expected_y = segmented_scan(x, decays)
        torch.testing.assert_close(first, expected_y, rtol=0, atol=0)
        # A state that comes from another lane is rounded otherwise than that lane's own.
        torch.testing.assert_close(second[:, 1:], expected_y[:, :-1])
        assert second[:, 0].count_nonzero() == 0
        assert first.stride() == second.stride() == expected_y.stride()
    for shape in ((0, 5), (3, 0)):
        x = torch.empty(shape, device=device)
        assert [y.shape for y in dispatch.run(two_outputs(True), (x, x, None), (None,), 1)] == [shape] * 2


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("sequences", [5, 200, 20000])
@pytest.mark.parametrize("strategy", ["dense, whole rows", "chunks of two tiles"] if INTERPRETER else [None])
def test_many_sequences(device: str, sequences: int, reverse: bool, strategy: str | None) -> None:
    """More than all threads look at together, most of them empty."""
    generator = torch.Generator().manual_seed(sequences)
    steps = 53 if INTERPRETER else 30011
    cu_seqlens = torch.randint(3, steps - 2, (sequences + 1,), generator=generator).sort().values
    x = torch.randn(steps, generator=generator)
    arguments: dict[str, Any] = {"inputs": x, "decays": x.sigmoid(), "reverse": reverse}
    arguments |= {"initial": torch.randn(sequences, generator=generator), "cu_seqlens": cu_seqlens}
    with forced_plan(strategy) if strategy else contextlib.nullcontext():
        y = segmented_scan(**on(device, arguments), time_dim=0)
    oracle = reference.SequencesApart(reference.segmented_scan)
    assert_within_rule(y, oracle(**arguments), oracle(**arguments, dtype=torch.float32), torch.float32, time_dim=0)


def test_sequences_beside_copied_steps_start_where_they_should(device: str) -> None:
    x = torch.rand(2, 2, 2, 9, dtype=torch.float64, device=device).permute(3, 2, 1, 0)
    cu_seqlens = torch.tensor([0, 3, 5, 9], device=device)
    # Two batch axes that a kernel can walk, and the sequences between them in memory.
    initial = torch.rand(2, 2, 3, 4, dtype=torch.float64, device=device)[..., :2].permute(2, 0, 1, 3)
    y = segmented_scan(x, x, initial=initial, cu_seqlens=cu_seqlens, time_dim=0)
    expected = segmented_scan(
        x.contiguous(), x.contiguous(), initial=initial.contiguous(), cu_seqlens=cu_seqlens, time_dim=0
    )
    torch.testing.assert_close(y, expected)


# The rest needs a GPU.


def random_call(rows: int, steps: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = (rows, steps)
    return {
        "inputs": torch.randn(shape, generator=generator, device="cuda"),
        "decays": torch.rand(shape, generator=generator, device="cuda"),
        "resets": torch.rand(shape, generator=generator, device="cuda") < 0.05,
    }


# Whole rows, rows that share groups, walked and chunked ones.
GPU_SHAPES = ((127, 64), (61, 63), (2000, 8192), (2, 65536), (2001, 8191), (3, 65537))


def counted_launches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for every ordinary launch from now on."""
    from rl_triton_core.engine import kernels

    launches: list[Any] = []
    run = kernels.scan.run

    def counted(*arguments: Any, **options: Any) -> Any:
        launches.append(options["grid"])
        return run(*arguments, **options)

    monkeypatch.setattr(kernels.scan, "run", counted)
    return launches


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "steps"), GPU_SHAPES)
def test_a_direct_launch_gives_what_an_ordinary_one_gives(
    monkeypatch: pytest.MonkeyPatch, rows: int, steps: int
) -> None:
    call = random_call(rows, steps)
    forget_prepared_calls()
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "DIRECT_LAUNCH", False)
        ordinary = [segmented_scan(**call), segmented_scan(**call)]
    segmented_scan(**call)
    launches = counted_launches(monkeypatch)
    direct = [segmented_scan(**call) for _ in range(3)]
    assert launches == []
    for y in (*ordinary, *direct):
        assert torch.equal(y, ordinary[0])


@pytest.mark.gpu
def test_an_unaligned_tensor_takes_the_ordinary_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    call = random_call(8, 64)
    forget_prepared_calls()
    expected_y = segmented_scan(**call)
    launches = counted_launches(monkeypatch)
    for name in call:
        buffer = torch.empty(8 * 64 + 1, dtype=call[name].dtype, device="cuda")
        shifted = buffer[1:].view(8, 64).copy_(call[name])
        assert torch.equal(segmented_scan(**(call | {name: shifted})), expected_y)
    assert len(launches) == len(call)
    assert torch.equal(segmented_scan(**call), expected_y)
    assert len(launches) == len(call)


@pytest.mark.gpu
def test_launch_hooks_see_every_launch() -> None:
    from triton import knobs

    call = random_call(8, 64)
    segmented_scan(**call)
    seen: list[Any] = []

    def hook(metadata: Any) -> None:
        seen.append(metadata)

    knobs.runtime.launch_enter_hook.add(hook)
    try:
        segmented_scan(**call)
        segmented_scan(**call)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    segmented_scan(**call)
    assert len(seen) == 2


@pytest.mark.gpu
def test_gradients_are_recorded_however_the_call_was_first_seen() -> None:
    call = random_call(8, 64)
    call["inputs"].requires_grad_()
    with torch.no_grad():
        for _ in range(3):
            assert not segmented_scan(**call).requires_grad
    y = segmented_scan(**call)
    assert y.requires_grad
    y.sum().backward()
    with torch.inference_mode():
        inferred = segmented_scan(**call)
    torch.testing.assert_close(inferred, y.detach())
    assert segmented_scan(**call).requires_grad


@pytest.mark.gpu
def test_modes_and_transforms_see_the_operations() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.operations = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operations += 1
            return func(*args, **(kwargs or {}))

    call = random_call(8, 64)
    plain = segmented_scan(**call)
    with Seen() as seen:
        torch.testing.assert_close(segmented_scan(**call), plain)
    assert seen.operations > 1
    tangent = torch.ones_like(call["inputs"])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call["inputs"], tangent)
        y = segmented_scan(**(call | {"inputs": dual}))
        # Either the derivative or an error, but not a result that lost it.
        assert torch.autograd.forward_ad.unpack_dual(y).tangent is not None


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "steps"), GPU_SHAPES)
def test_bitwise_the_same_from_run_to_run(rows: int, steps: int) -> None:
    call = random_call(rows, steps)
    first = segmented_scan(**call)
    for _ in range(20):
        assert torch.equal(segmented_scan(**call), first)


@pytest.mark.gpu
def test_the_current_stream_is_used() -> None:
    """A stream that is held up: a launch on any other one would read the inputs too early."""
    for rows, steps in GPU_SHAPES:
        call = random_call(rows, steps)
        expected_y = segmented_scan(**call)
        late = {name: torch.zeros_like(x) for name, x in call.items()}
        segmented_scan(**late)
        streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        torch.cuda.synchronize()
        results = []
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                mine = {name: x.clone() for name, x in late.items()}
                for name, x in call.items():
                    mine[name].copy_(x)
                results.append(segmented_scan(**mine))
        torch.cuda.synchronize()
        for y in results:
            assert torch.equal(y, expected_y)


@pytest.mark.gpu
def test_eight_threads_at_once() -> None:
    calls = [[random_call(rows, steps, seed) for rows, steps in (*GPU_SHAPES[:2], (9, 31))] for seed in range(8)]
    alone = [[segmented_scan(**call).clone() for call in own] for own in calls]
    forget_prepared_calls()
    failures: list[Any] = []

    def work(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(30):
                    for call, y in zip(calls[index], alone[index], strict=True):
                        assert torch.equal(segmented_scan(**call), y)
        except BaseException as error:
            failures.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "steps"), GPU_SHAPES)
def test_cuda_graphs(rows: int, steps: int) -> None:
    call, other = random_call(rows, steps, 0), random_call(rows, steps, 1)
    expected_y = [segmented_scan(**call), segmented_scan(**other)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = segmented_scan(**call)
    graph.replay()
    assert torch.equal(y, expected_y[0])
    for name, x in other.items():
        call[name].copy_(x)
    graph.replay()
    assert torch.equal(y, expected_y[1])


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "steps"), GPU_SHAPES)
def test_no_call_waits_for_the_gpu(rows: int, steps: int) -> None:
    call = random_call(rows, steps)
    forget_prepared_calls()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            segmented_scan(**call)
            segmented_scan(**call, reverse=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_memory_is_the_output_and_little_more() -> None:
    for rows, steps in ((4096, 1024), (1, 2**22)):
        call = random_call(rows, steps)
        segmented_scan(**call)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = segmented_scan(**call)
        output = y.numel() * y.element_size()
        assert torch.cuda.max_memory_allocated() - before <= 1.01 * output


# Offsets beyond 2**31 elements: answers that are known without a loop.


@pytest.mark.gpu
@pytest.mark.slow
@both_directions
@pytest.mark.parametrize("layout", ["batch first", "time first"])
@pytest.mark.parametrize("steps", [1032, 1037])
def test_more_than_two_to_the_31_elements(layout: str, steps: int, reverse: bool) -> None:
    rows = 2**21 + 3
    shape, dim = ((rows, steps), 1) if layout == "batch first" else ((steps, rows), 0)
    inputs = torch.ones(shape, dtype=torch.bfloat16, device="cuda")
    decays = torch.full((1, 1), 0.5, dtype=torch.bfloat16, device="cuda").expand(shape)
    line = torch.zeros(steps, device="cuda", dtype=torch.bool)
    line[::100] = True
    resets = line.unsqueeze(1 - dim).expand(shape)
    y = segmented_scan(inputs, decays, resets=resets, reverse=reverse, time_dim=dim)
    row = segmented_scan(inputs.select(1 - dim, 0), decays.select(1 - dim, 0), resets=line, reverse=reverse, time_dim=0)
    # Compared piece by piece: a mask of the whole would not fit beside it.
    for part in y.split(2**18 if layout == "batch first" else 64, dim=0):
        start = (part.data_ptr() - y.data_ptr()) // y.element_size() // rows if dim == 0 else 0
        assert (part == row.unsqueeze(1 - dim).narrow(dim, start, part.shape[dim])).all()


@pytest.mark.gpu
@pytest.mark.slow
@both_directions
@pytest.mark.parametrize("more", [0, 8, 9])
def test_a_row_of_more_than_two_to_the_31_steps(more: int, reverse: bool) -> None:
    steps = 2**31 + more
    one = torch.ones(1, 1, dtype=torch.bfloat16, device="cuda")
    y = segmented_scan(one.expand(1, steps), 0.5 * one.expand(1, steps), initial=4 * one[0], reverse=reverse)
    from_the_open_end = y[0, -16:].flip(0) if reverse else y[0, :16]
    state, states = 4.0, []
    for _ in range(16):
        state = 1 + 0.5 * state
        states.append(state)
    assert torch.equal(from_the_open_end, torch.tensor(states, dtype=torch.bfloat16, device="cuda"))
    for part in (y[0, :-16] if reverse else y[0, 16:]).split(2**28):
        assert (part == 2).all()


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_writes_into_buffers(device: str, reverse: bool) -> None:
    given = on(device, drawn_by_name(("inputs", "decays", "resets", "initial"), 13, torch.float32))
    assert_writes_outputs_of(functools.partial(segmented_scan, reverse=reverse), given)
