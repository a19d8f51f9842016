"""compute_gae by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import (
    BOUNDARIES,
    Draw,
    FlagsAtStarts,
    assert_obeys_rule,
    assert_obeys_rule_as_given,
    assert_packs,
    on_kernel_device,
    time_first,
    with_flags_of_next,
    with_mask,
)
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_core.testing.plans import DENSE_STRATEGIES, STRATEGIES, forced_plan
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_gae import compute_gae, reference

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_gae.json")
SHAPES = [(1, 1), (3, 2), (2, 7), (2, 9), (8, 9), (3, 16), (2, 33), (1, 64)]
if not INTERPRETED:
    SHAPES = [(1, 1), (3, 2), (4096, 1), (127, 7), (4096, 9), (4096, 31), (3, 63), (127, 64), (4096, 65), (4096, 100)]
    SHAPES += [(127, 131), (4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
OPTIONS = ["nothing", "last_value", "bootstrap_values", "next_values", "per-step", "truncateds"]


def drawn(shape: tuple[int, int], boundaries: str, option: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments on the CPU, environment-major."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {"rewards": draw.numbers(), "values": draw.numbers(), "gamma": 0.99, "lambda_": 0.95}
    arguments["terminateds"] = draw.flags(boundaries)
    if option == "last_value":
        arguments["last_value"] = draw.numbers(shape[:1])
    if option in ("bootstrap_values", "next_values"):
        arguments |= {option: draw.numbers(), "truncateds": draw.flags("random")}
    if option == "per-step":
        arguments |= {"gamma": draw.numbers().sigmoid(), "lambda_": draw.numbers().sigmoid()}
    if option == "truncateds":
        arguments |= {"truncateds": draw.flags("random"), "last_value": draw.numbers(shape[:1])}
    return arguments


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    assert_obeys_rule(compute_gae, reference.compute_gae, arguments, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in case.inputs.items()}
    loop = reference.compute_gae(**given, **case.params, dtype=torch.float32)
    actual = compute_gae(**on_kernel_device(given), **case.params)
    assert_within_rule(actual, case.expected["advantages"], loop, dtype)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_options(shape: tuple[int, int], option: str) -> None:
    check(drawn(shape, "random", option))


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[3:5] if INTERPRETED else SHAPES, ids=str)
def test_flags_at_starts(shape: tuple[int, int], option: str) -> None:
    arguments = with_flags_of_next(drawn(shape, "random", option))
    assert_obeys_rule(FlagsAtStarts(compute_gae), FlagsAtStarts(reference.compute_gae), arguments)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("starts", [False, True], ids=["ends_at", "starts_at"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[3:5] if INTERPRETED else SHAPES, ids=str)
def test_transparent_steps(shape: tuple[int, int], option: str, starts: bool) -> None:
    arguments = with_mask(drawn(shape, "random", option))
    if starts:
        arguments = with_flags_of_next(arguments)
        assert_obeys_rule(FlagsAtStarts(compute_gae), FlagsAtStarts(reference.compute_gae), arguments)
    else:
        check(arguments)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU gets these plans from problems of their size")
@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("strategy", [*STRATEGIES, *DENSE_STRATEGIES])
@pytest.mark.parametrize("option", ["truncateds", "bootstrap_values", "next_values"])
def test_transparent_steps_under_every_strategy(option: str, strategy: str) -> None:
    arguments = with_mask(drawn((5, 29), "random", option))
    with forced_plan(strategy):
        if option == "truncateds":
            # Targets as well, which are stored beside the advantages.
            with_targets = (partial(f, return_targets=True) for f in (compute_gae, reference.compute_gae))
            assert_obeys_rule_as_given(*with_targets, on_kernel_device(arguments))
        if strategy in DENSE_STRATEGIES:
            assert_obeys_rule_as_given(compute_gae, reference.compute_gae, on_kernel_device(arguments))
        else:
            check(arguments)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("option", OPTIONS[1:])
@pytest.mark.parametrize("shape", SHAPES[4:5] if INTERPRETED else SHAPES[3:], ids=str)
def test_targets_in_the_same_pass(shape: tuple[int, int], option: str, dtype: torch.dtype) -> None:
    arguments = drawn(shape, "random", option, dtype)
    with_targets = (partial(f, return_targets=True) for f in (compute_gae, reference.compute_gae))
    assert_obeys_rule(*with_targets, arguments, dtype)


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("shape", SHAPES[2:6] if INTERPRETED else SHAPES[2::3], ids=str)
def test_boundaries(shape: tuple[int, int], boundaries: str) -> None:
    check(drawn(shape, boundaries, "bootstrap_values"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES[3:6], ids=str)
def test_dtypes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", "last_value", dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64], ids=str)
def test_flags_of_any_dtype(dtype: torch.dtype) -> None:
    arguments = drawn(SHAPES[4], "random", "bootstrap_values")
    for name in ("terminateds", "truncateds"):
        arguments[name] = arguments[name].to(dtype) * (1 if dtype == torch.bool else 3)
    check(arguments)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("shape", SHAPES[3:7] if INTERPRETED else SHAPES[3:], ids=str)
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int], poison: float) -> None:
    arguments = drawn(shape, "random", "bootstrap_values")
    generator = torch.Generator().manual_seed(1)
    for name in ("rewards", "values", "bootstrap_values"):
        arguments[name][torch.rand(shape, generator=generator) < 0.05] = poison
    check(arguments)


def test_values_behind_a_termination_are_not_read() -> None:
    rows, steps = SHAPES[4]
    arguments = drawn((rows, steps), "none", "last_value")
    arguments["terminateds"][:, [steps // 2, -1]] = True
    arguments["last_value"][:] = math.nan
    arguments["values"][:, steps // 2 + 1] = math.nan
    expected = reference.compute_gae(**arguments)
    assert expected[:, : steps // 2 + 1].isfinite().all()
    check(arguments)


def test_views_are_read_in_place() -> None:
    rows, steps = SHAPES[4]
    arguments = drawn((rows, steps), "random", "last_value")
    expected = reference.compute_gae(**arguments)
    loop = reference.compute_gae(**arguments, dtype=torch.float32)
    given = on_kernel_device(arguments)
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    stepped.copy_(given["rewards"])
    offset = torch.full((rows * steps + 1,), math.nan, device=DEVICE)[1:].view(rows, steps)
    offset.copy_(given["values"])
    flags = time_first(given["terminateds"]).t()
    actual = compute_gae(stepped, offset, flags, last_value=given["last_value"])
    assert_within_rule(actual, expected, loop, torch.float32)
    agents = torch.stack([given["values"], given["values"]], -1)
    shared = {name: given[name].unsqueeze(-1).expand_as(agents) for name in ("rewards", "terminateds")}
    last_value = given["last_value"].unsqueeze(-1).expand(-1, 2)
    together = compute_gae(shared["rewards"], agents, shared["terminateds"], last_value=last_value)
    assert together.is_contiguous()
    for agent in range(2):
        assert_within_rule(together[..., agent], expected, loop, torch.float32)


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 9), 1), ((2, 3, 9), 2), ((9, 2, 3), 0), ((2, 3, 9, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int) -> None:
    draw = Draw(shape)
    row_shape = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    arguments = {name: draw.numbers() for name in ("rewards", "values", "bootstrap_values")}
    arguments |= {"terminateds": draw.flags("random"), "truncateds": draw.flags("random")}
    last_value = {**arguments, "last_value": draw.numbers(row_shape)}
    del last_value["bootstrap_values"], last_value["truncateds"]
    for given in (arguments, last_value):
        expected = reference.compute_gae(**given, time_dim=dim)
        loop = reference.compute_gae(**given, time_dim=dim, dtype=torch.float32)
        actual = compute_gae(**on_kernel_device(given), time_dim=dim)
        assert_within_rule(actual, expected, loop, torch.float32)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], dim: int) -> None:
    x = torch.ones(shape, device=DEVICE)
    advantages = compute_gae(x, x, x, last_value=torch.ones(shape[1 - dim], device=DEVICE), time_dim=dim)
    assert advantages.shape == shape
    assert advantages.device == x.device


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("decay", [0.94, 0.99, 0.999, 0.9999, 1.0])
@pytest.mark.parametrize(("rows", "steps"), [(64, 512), (64, 2048), (3, 20001)])
def test_long_rows_and_decays_near_one(rows: int, steps: int, decay: float) -> None:
    arguments = drawn((rows, steps), "none", "last_value") | {"gamma": decay, "lambda_": 1.0}
    expected = reference.compute_gae(**arguments)
    loop = reference.compute_gae(**arguments, dtype=torch.float32)
    assert_within_rule(compute_gae(**on_kernel_device(arguments)), expected, loop, torch.float32)
    per_step = {name: torch.full((rows, steps), number) for name, number in (("gamma", decay), ("lambda_", 1.0))}
    expected = reference.compute_gae(**(arguments | per_step))
    loop = reference.compute_gae(**(arguments | per_step), dtype=torch.float32)
    assert_within_rule(compute_gae(**on_kernel_device(arguments | per_step)), expected, loop, torch.float32)


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize(
    ("rows", "steps", "decay"),
    [
        *((8, 131072, decay) for decay in (0.95, 0.999, 1.0)),
        pytest.param(1, 1048576, 0.999, marks=pytest.mark.slow),
    ],
)
def test_few_long_rows(rows: int, steps: int, decay: float) -> None:
    arguments = drawn((rows, steps), "none", "last_value") | {"gamma": decay, "lambda_": 1.0}
    expected = reference.compute_gae(**arguments)
    loop = reference.compute_gae(**arguments, dtype=torch.float32)
    assert_within_rule(compute_gae(**on_kernel_device(arguments)), expected, loop, torch.float32)


# (rows, steps): one row shares groups with the next where time is contiguous, several lie side by side.
PACKED = [(1, 61), (3, 29)] if INTERPRETED else [(1, 61), (1, 4099), (1, 40000), (3, 4099), (40, 300)]


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", PACKED, ids=str)
def test_packed_sequences(shape: tuple[int, int], option: str, masked: bool) -> None:
    arguments = drawn(shape, "random", option)
    assert_packs(compute_gae, reference.compute_gae, with_mask(arguments) if masked else arguments)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU gets these plans from problems of their size")
@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("strategy", [*STRATEGIES, *DENSE_STRATEGIES])
def test_packed_sequences_under_every_strategy(strategy: str) -> None:
    with_targets = [partial(f, return_targets=True) for f in (compute_gae, reference.compute_gae)]
    with forced_plan(strategy):
        for shape in [(1, 53), (3, 29)][: 1 if strategy in DENSE_STRATEGIES else 2]:
            assert_packs(compute_gae, reference.compute_gae, drawn(shape, "random", "last_value"))
            assert_packs(*with_targets, with_mask(drawn(shape, "random", "truncateds")))


def with_two_lambdas(arguments: dict[str, Any], kinds: str) -> dict[str, Any]:
    """The arguments with another lambda for the targets; `kinds` says which are a number and which one per step."""
    per_step = Draw(arguments["rewards"].shape, arguments["rewards"].dtype, seed=5).numbers().sigmoid()
    lambdas = {
        "numbers": {"lambda_": 0.9, "targets_lambda": 1.0},
        "number, per step": {"lambda_": 0.9, "targets_lambda": per_step},
        "per step": {"gamma": 1 - per_step / 9, "lambda_": per_step.flip(0), "targets_lambda": per_step},
    }
    return arguments | lambdas[kinds]


WITH_TARGETS = [partial(f, return_targets=True) for f in (compute_gae, reference.compute_gae)]
LAMBDAS = ["numbers", "number, per step", "per step"]


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("dtype", [torch.float32, *([] if INTERPRETED else [torch.float16, torch.float64])], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("kinds", LAMBDAS)
@pytest.mark.parametrize("shape", SHAPES[4:5] if INTERPRETED else SHAPES[3::2], ids=str)
def test_two_lambdas(shape: tuple[int, int], kinds: str, masked: bool, dtype: torch.dtype) -> None:
    arguments = with_two_lambdas(drawn(shape, "random", "truncateds", dtype), kinds)
    assert_obeys_rule(*WITH_TARGETS, with_mask(arguments) if masked else arguments, dtype)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU gets these plans from problems of their size")
@pytest.mark.parametrize("strategy", [*STRATEGIES, *DENSE_STRATEGIES])
def test_two_lambdas_under_every_strategy(strategy: str) -> None:
    with forced_plan(strategy):
        for kinds in LAMBDAS[1:2] if strategy.endswith("two tiles") else LAMBDAS[:1]:
            arguments = with_two_lambdas(drawn((5, 29), "random", "bootstrap_values"), kinds)
            if strategy in DENSE_STRATEGIES:
                assert_obeys_rule_as_given(*WITH_TARGETS, on_kernel_device(arguments))
            else:
                assert_obeys_rule(*WITH_TARGETS, with_mask(arguments))


@pytest.mark.parametrize("kinds", LAMBDAS[:2])
def test_two_lambdas_of_packed_sequences(kinds: str) -> None:
    assert_packs(*WITH_TARGETS, with_two_lambdas(drawn(PACKED[0], "random", "last_value"), kinds))
