"""compute_retrace by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.engine import launcher, layout, prepared
from rl_triton_core.engine.plan import Plan
from rl_triton_core.testing.accesses import reads_only
from rl_triton_core.testing.calls import (
    BOUNDARIES,
    Draw,
    FlagsAtStarts,
    as_tuple,
    assert_obeys_rule,
    assert_packs,
    on_kernel_device,
    time_first,
    with_flags_of_next,
)
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_retrace import compute_retrace, reference
from torch import Tensor

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_retrace.json")
# Environments, steps, actions; never as many steps as actions: one step's policy would pass for one number a step.
SHAPES = [(1, 1, 3), (3, 2, 1), (2, 9, 5), (3, 16, 4)]
if not INTERPRETED:
    SHAPES = [(1, 1, 3), (4096, 2, 1), (127, 7, 4), (4096, 9, 5), (4096, 128, 4), (4096, 100, 4), (127, 131, 3)]
    SHAPES += [(4096, 128, 18), (512, 120, 128), (64, 100, 1000), (128, 2048, 4), (8, 1001, 6), (3, 4097, 4)]
    SHAPES += [
        (600, 1500, 4),
        (600, 1000, 4),
        (600, 600, 7),
        (512, 300, 64),
        (140, 3000, 4),
        (100, 3000, 2),
        (2, 20001, 4),
        (3, 3000, 18),
    ]
OPTIONS = ["nothing", "truncateds", "next policy", "last policy", "values", "per-step", "no clips"]


def drawn(
    shape: tuple[int, int, int], boundaries: str, option: str, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Arguments on the CPU, environment-major; rewards first, whose layout the outputs have."""
    draw = Draw(shape[:2], dtype)
    arguments: dict[str, Any] = {
        "rewards": draw.numbers(),
        "action_probs_target": draw.numbers(shape).float().softmax(-1).to(dtype),
        "action_probs_behavior": draw.numbers().float().sigmoid().to(dtype) * 0.9 + 0.1,
        "q_values": draw.numbers(),
        "next_q_values_all": draw.numbers(shape),
        "actions": torch.randint(shape[2], shape[:2], generator=draw.generator),
        "terminateds": draw.flags(boundaries),
        "truncateds": None if option == "nothing" else draw.flags("random"),
        "gamma": 0.97,
        "lambda_": 0.95,
    }
    if option in ("next policy", "last policy"):
        of = shape if option == "next policy" else (shape[0], shape[2])
        arguments["next_action_probs_target"] = draw.numbers(of).float().softmax(-1).to(dtype)
    if option == "values":
        arguments["values"] = draw.numbers()
    if option == "per-step":
        arguments |= {"gamma": draw.numbers().sigmoid(), "lambda_": draw.numbers().sigmoid()}
    if option == "no clips":
        arguments |= {"c_bar": None, "rho_bar": math.inf, "action_probs_behavior": draw.numbers().sigmoid() * 0.5 + 0.5}
    return arguments


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    assert_obeys_rule(compute_retrace, reference.compute_retrace, arguments, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in case.inputs.items()}
    loops = reference.compute_retrace(**given, **case.params, dtype=torch.float32)
    outputs = compute_retrace(**on_kernel_device(given), **case.params)
    for output, name, loop in zip(outputs, ("targets", "advantages"), loops, strict=True):
        assert_within_rule(output, case.expected[name], loop, dtype)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[2:] if INTERPRETED else SHAPES, ids=str)
def test_options(shape: tuple[int, int, int], option: str) -> None:
    check(drawn(shape, "random", option))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[2:3] if INTERPRETED else SHAPES, ids=str)
def test_flags_at_starts(shape: tuple[int, int, int], option: str) -> None:
    arguments = with_flags_of_next(drawn(shape, "random", option))
    assert_obeys_rule(FlagsAtStarts(compute_retrace), FlagsAtStarts(reference.compute_retrace), arguments)


@pytest.mark.parametrize("shape", [*SHAPES[:2], (2, 33, 2), (1, 40, 18)] if INTERPRETED else SHAPES[-3:], ids=str)
def test_shapes(shape: tuple[int, int, int]) -> None:
    check(drawn(shape, "random", "truncateds"))


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("shape", SHAPES[2:3] if INTERPRETED else SHAPES[2::3], ids=str)
def test_boundaries(shape: tuple[int, int, int], boundaries: str) -> None:
    check(drawn(shape, boundaries, "truncateds"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES[2:4] if INTERPRETED else SHAPES[3:9], ids=str)
def test_dtypes(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", "truncateds", dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32], ids=str)
def test_actions_of_any_integer_dtype(dtype: torch.dtype) -> None:
    arguments = drawn((2, 9, 2), "random", "truncateds")
    check(arguments | {"actions": arguments["actions"].to(dtype)})


@pytest.mark.parametrize("shape", SHAPES[2:4] if INTERPRETED else SHAPES[2:9], ids=str)
def test_an_action_that_does_not_exist_is_nan(shape: tuple[int, int, int]) -> None:
    arguments = drawn(shape, "random", "truncateds")
    generator = torch.Generator().manual_seed(1)
    for action in (-1, shape[2], 2**31, -(2**62)):
        arguments["actions"][torch.rand(shape[:2], generator=generator) < 0.05] = action
    check(arguments)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("shape", SHAPES[2:4] if INTERPRETED else SHAPES[2:], ids=str)
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int, int], poison: float) -> None:
    arguments = drawn(shape, "random", "last policy")
    generator = torch.Generator().manual_seed(1)
    for name in ("rewards", "q_values", "next_q_values_all"):
        arguments[name][torch.rand(arguments[name].shape, generator=generator) < 0.03] = poison
    # A decay of exactly 0 may hide NaN or not, so there is no infinite behavior.
    for name in ("action_probs_behavior", "action_probs_target", "next_action_probs_target"):
        arguments[name][torch.rand(arguments[name].shape, generator=generator) < 0.01] = math.nan
    check(arguments)


@pytest.mark.parametrize("shape", SHAPES[2:4] if INTERPRETED else SHAPES[3:9], ids=str)
def test_an_impossible_action_counts_nothing(shape: tuple[int, int, int]) -> None:
    arguments = drawn(shape, "random", "last policy")
    for name in ("action_probs_target", "next_action_probs_target"):
        arguments[name][..., 0] = 0.0
    arguments["next_q_values_all"][..., 0] = -math.inf
    arguments["next_q_values_all"][:, ::2, 0] = math.nan
    arguments["actions"].clamp_(min=1)
    targets, _ = reference.compute_retrace(**arguments)
    assert targets.isfinite().all()
    check(arguments)


def test_what_a_termination_hides_is_not_read() -> None:
    arguments = drawn((2, 9, 4), "none", "truncateds")
    arguments["terminateds"][:, [3, -1]] = True
    arguments["next_q_values_all"][:, [3, -1]] = math.nan
    arguments["action_probs_target"][:, 4] = math.nan
    for name in ("gamma", "lambda_"):
        arguments[name] = torch.full((2, 9), 0.9)
        arguments[name][:, [3, -1]] = math.nan
    targets, advantages = reference.compute_retrace(**arguments)
    assert targets[:, :4].isfinite().all()
    assert advantages[:, :4].isfinite().all()
    check(arguments)


def test_views_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = drawn((3, 10, 5), "random", "next policy")
    expected = reference.compute_retrace(**arguments)
    loops = reference.compute_retrace(**arguments, dtype=torch.float32)
    given = on_kernel_device(arguments)

    def as_view(x: Tensor, order: tuple[int, ...], step: int) -> Tensor:
        """The tensor as a view whose memory has another order of axes, and gaps along the last of them."""
        permuted = x.permute(order)
        buffer = torch.full((*permuted.shape[:-1], step * permuted.shape[-1] + 1), math.nan, device=x.device)
        view = buffer[..., 1::step][..., : permuted.shape[-1]]
        view.copy_(permuted)
        return view.permute([order.index(axis) for axis in range(x.dim())])

    monkeypatch.setattr(layout, "warn_performance", pytest.fail)
    layouts = [((0, 1, 2), 1), ((0, 1, 2), 2), ((2, 0, 1), 1), ((1, 2, 0), 1), ((2, 1, 0), 2)]
    for start in range(5):
        views = {
            name: as_view(given[name], *layouts[(start + i) % 5])
            for i, name in enumerate(("action_probs_target", "next_q_values_all", "next_action_probs_target"))
        }
        outputs = compute_retrace(**(given | views))
        for output, reference64, loop in zip(outputs, expected, loops, strict=True):
            assert_within_rule(output, reference64, loop, torch.float32)
    expanded = given["next_q_values_all"][:, :1, :1].expand(3, 10, 5)
    outputs = compute_retrace(**(given | {"next_q_values_all": expanded}))
    for output, other in zip(
        outputs, compute_retrace(**(given | {"next_q_values_all": expanded.clone()})), strict=True
    ):
        assert torch.equal(output, other)


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 9), 1), ((2, 3, 9), 2), ((9, 2, 3), 0), ((2, 2, 9, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int) -> None:
    draw = Draw(shape)
    row_shape = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "q_values")}
    arguments |= {
        "action_probs_target": draw.numbers((*shape, 4)).softmax(-1),
        "next_q_values_all": draw.numbers((*shape, 4)),
        "action_probs_behavior": draw.numbers().sigmoid(),
        "actions": torch.randint(4, shape, generator=draw.generator),
        "terminateds": draw.flags("random"),
        "truncateds": draw.flags("random"),
        "gamma": 0.97,
        "time_dim": dim,
    }
    for last_policy in (None, draw.numbers((*row_shape, 4)).softmax(-1)):
        arguments["next_action_probs_target"] = last_policy
        expected = reference.compute_retrace(**arguments)
        loops = reference.compute_retrace(**arguments, dtype=torch.float32)
        outputs = compute_retrace(**on_kernel_device(arguments))
        for output, reference64, loop in zip(outputs, expected, loops, strict=True):
            assert_within_rule(output, reference64, loop, torch.float32)


def test_three_batch_axes_are_copied() -> None:
    shape = (2, 9, 2, 3)
    draw = Draw(shape)
    arguments: dict[str, Any] = {
        "rewards": draw.numbers(),
        "action_probs_target": draw.numbers((*shape, 4)).softmax(-1),
        "action_probs_behavior": draw.numbers().sigmoid(),
        "q_values": draw.numbers(),
        "next_q_values_all": draw.numbers((*shape, 4)),
        "actions": torch.randint(4, shape, generator=draw.generator),
        "terminateds": draw.flags("random"),
        "truncateds": draw.flags("random"),
        "gamma": 0.97,
    }
    given = on_kernel_device(arguments)
    for name in ("action_probs_target", "next_q_values_all"):
        given[name] = given[name].permute(3, 0, 2, 1, 4).contiguous().permute(1, 3, 2, 0, 4)
    expected = reference.compute_retrace(**arguments)
    loops = reference.compute_retrace(**arguments, dtype=torch.float32)
    for output, reference64, loop in zip(compute_retrace(**given), expected, loops, strict=True):
        assert_within_rule(output, reference64, loop, torch.float32)


# Tiles smaller than the plan's, so that rows are walked and split within the interpreter's reach.
SMALL_PLANS = {
    "whole rows": Plan(4, 8, 1, 1, 1, 0, 0, False, 0, 0),
    "single steps": Plan(1, 32, 1, 1, 1, 0, 0, False, 0, 0),
    "walked": Plan(4, 4, 1, 1, 0, 0, 0, False, 1, 0),
    "walked in single steps": Plan(1, 8, 1, 1, 0, 0, 0, False, 1, 0),
    "chunks": Plan(4, 2, 1, 1, 1, 2, 2, False, 1, 0),
    "chunks of tiles": Plan(1, 4, 1, 1, 2, 2, 2, False, 1, 0),
}


@pytest.fixture
def forgetful() -> Iterator[None]:
    prepared._prepared_calls.clear()
    yield
    prepared._prepared_calls.clear()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("plan", SMALL_PLANS)
def test_every_strategy(monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    def small_plan(rows: int, steps: int, *, contiguous: bool, **_: Any) -> Plan:
        small = SMALL_PLANS[plan]
        per_tile = small.lanes // -(-steps // small.steps) if plan in ("whole rows", "single steps") else 1
        columns = 1 if contiguous else 2
        programs = -(-rows // (columns * per_tile))
        return small._replace(columns=columns, rows_per_tile=per_tile, programs=programs, actions=2)

    monkeypatch.setattr(launcher, "make_plan", small_plan)
    check(drawn((3, 14, 5), "random", "last policy"))


@pytest.mark.usefixtures("forgetful")
def test_offsets_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_INT32_ELEMENTS", 0)
    check(drawn((2, 9, 10), "random", "last policy"))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], dim: int) -> None:
    x, of_actions = torch.ones(shape, device=DEVICE), torch.ones((*shape, 3), device=DEVICE)
    outputs = compute_retrace(of_actions, x, x, of_actions, x.long(), x, x, None, 0.9, time_dim=dim)
    for output in as_tuple(outputs):
        assert output.shape == shape
        assert output.device == x.device


# (rows, steps, actions), as elsewhere.
PACKED = [(1, 61, 3), (3, 29, 4)]
if not INTERPRETED:
    PACKED += [(1, 4099, 4), (1, 20000, 18), (3, 4099, 5), (40, 300, 64), (1, 3000, 1000)]


@pytest.mark.parametrize("option", ["last policy", "per-step"] if INTERPRETED else OPTIONS)
@pytest.mark.parametrize("shape", PACKED, ids=str)
def test_packed_sequences(shape: tuple[int, int, int], option: str) -> None:
    of_sequences = ("next_action_probs_target",) if option == "last policy" else ()
    arguments = drawn(shape, "random", option)
    assert_packs(compute_retrace, reference.compute_retrace, arguments, of_sequences=of_sequences)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU does not say what it has read")
@pytest.mark.parametrize("option", ["nothing", "last policy"])
@pytest.mark.parametrize("offsets", [[0, 3], [2, 5, 9], [4, 99, 100], [-3, 1]], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_packed_sequences_read_nothing_beside_the_tensors(rows: int, offsets: list[int], option: str) -> None:
    arguments = {name: time_first(x) for name, x in drawn((rows, 13, 4), "none", "nothing").items()}
    if option == "last policy":
        arguments["next_action_probs_target"] = Draw((len(offsets) - 1, rows, 4)).numbers().softmax(-1)
    arguments["cu_seqlens"] = torch.tensor(offsets)
    with reads_only([x for x in arguments.values() if isinstance(x, Tensor)]):
        compute_retrace(**arguments, time_dim=0)
