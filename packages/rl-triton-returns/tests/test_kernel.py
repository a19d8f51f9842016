"""compute_discounted_returns by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import (
    BOUNDARIES,
    Draw,
    FlagsAtStarts,
    assert_obeys_rule,
    assert_packs,
    on_kernel_device,
    time_first,
    with_flags_of_next,
    with_mask,
)
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_returns import compute_discounted_returns, reference

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_discounted_returns.json")
SHAPES = [(1, 1), (3, 2), (2, 7), (2, 9), (8, 9), (3, 16), (1, 64)]
if not INTERPRETED:
    SHAPES = [(1, 1), (3, 2), (4096, 1), (127, 7), (4096, 9), (4096, 31), (3, 63), (127, 64), (4096, 65), (4096, 100)]
    SHAPES += [(127, 131), (4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
OPTIONS = ["nothing", "last_value", "bootstrap_values", "truncateds", "both", "per-step", "everything"]


def drawn(shape: tuple[int, int], boundaries: str, option: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments on the CPU, environment-major."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {"rewards": draw.numbers(), "terminateds": draw.flags(boundaries), "gamma": 0.99}
    if option in ("last_value", "truncateds"):
        arguments["last_value"] = draw.numbers(shape[:1])
    if option in ("bootstrap_values", "both", "everything"):
        arguments["bootstrap_values"] = draw.numbers()
    if option in ("truncateds", "both", "everything"):
        arguments["truncateds"] = draw.flags("random")
    if option in ("per-step", "everything"):
        arguments["gamma"] = draw.numbers().sigmoid()
    return arguments


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    assert_obeys_rule(compute_discounted_returns, reference.compute_discounted_returns, arguments, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in case.inputs.items()}
    loop = reference.compute_discounted_returns(**given, **case.params, dtype=torch.float32)
    actual = compute_discounted_returns(**on_kernel_device(given), **case.params)
    assert_within_rule(actual, case.expected["returns"], loop, dtype)


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
    assert_obeys_rule(
        FlagsAtStarts(compute_discounted_returns), FlagsAtStarts(reference.compute_discounted_returns), arguments
    )


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("starts", [False, True], ids=["ends_at", "starts_at"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[3:5] if INTERPRETED else SHAPES, ids=str)
def test_transparent_steps(shape: tuple[int, int], option: str, starts: bool) -> None:
    arguments = with_mask(drawn(shape, "random", option))
    if starts:
        arguments = with_flags_of_next(arguments)
        assert_obeys_rule(
            FlagsAtStarts(compute_discounted_returns), FlagsAtStarts(reference.compute_discounted_returns), arguments
        )
    else:
        check(arguments)


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("shape", SHAPES[4:6] if INTERPRETED else SHAPES[2::3], ids=str)
def test_boundaries(shape: tuple[int, int], boundaries: str) -> None:
    check(drawn(shape, boundaries, "both"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SHAPES[4:6] if INTERPRETED else SHAPES[3:6], ids=str)
def test_dtypes(shape: tuple[int, int], dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", "last_value", dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64], ids=str)
def test_flags_of_any_dtype(dtype: torch.dtype) -> None:
    arguments = drawn(SHAPES[4], "random", "both")
    for name in ("terminateds", "truncateds"):
        arguments[name] = arguments[name].to(dtype) * (1 if dtype == torch.bool else 3)
    check(arguments)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("shape", SHAPES[4:7] if INTERPRETED else SHAPES[3:], ids=str)
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int], poison: float) -> None:
    arguments = drawn(shape, "random", "both")
    generator = torch.Generator().manual_seed(1)
    for name in ("rewards", "bootstrap_values"):
        arguments[name][torch.rand(shape, generator=generator) < 0.05] = poison
    check(arguments)


@pytest.mark.parametrize("continuation", ["bootstrap_values", "last_value"])
def test_what_a_boundary_hides_is_not_read(continuation: str) -> None:
    rows, steps = SHAPES[4]
    arguments = drawn((rows, steps), "none", "everything")
    terminateds, truncateds = arguments["terminateds"], arguments["truncateds"]
    terminateds[:, [steps // 2, -1]] = True
    if continuation == "last_value":
        del arguments["bootstrap_values"], arguments["truncateds"]
        arguments["last_value"] = torch.full((rows,), math.nan)
    else:
        arguments["bootstrap_values"][terminateds | ~truncateds] = math.nan
    arguments["gamma"][terminateds] = math.nan
    assert reference.compute_discounted_returns(**arguments).isfinite().all()
    check(arguments)


@pytest.mark.filterwarnings("ignore:truncateds without")
def test_with_nothing_to_continue_with_gamma_is_not_read() -> None:
    arguments = drawn(SHAPES[4], "random", "everything")
    del arguments["bootstrap_values"]
    arguments["gamma"][arguments["truncateds"]] = math.nan
    arguments["gamma"][:, -1] = math.nan
    assert reference.compute_discounted_returns(**arguments).isfinite().all()
    check(arguments)


def test_views_are_read_in_place() -> None:
    rows, steps = SHAPES[4]
    arguments = drawn((rows, steps), "random", "last_value")
    expected = reference.compute_discounted_returns(**arguments)
    loop = reference.compute_discounted_returns(**arguments, dtype=torch.float32)
    given = on_kernel_device(arguments)
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    offset = torch.full((rows * steps + 1,), math.nan, device=DEVICE)[1:].view(rows, steps)
    flags = time_first(given["terminateds"]).t()
    for rewards in (stepped, offset):
        rewards.copy_(given["rewards"])
        actual = compute_discounted_returns(rewards, flags, last_value=given["last_value"])
        assert_within_rule(actual, expected, loop, torch.float32)
    agents = torch.stack([given["rewards"], given["rewards"]], -1)
    flags = given["terminateds"].unsqueeze(-1).expand_as(agents)
    last_value = given["last_value"].unsqueeze(-1).expand(-1, 2)
    together = compute_discounted_returns(agents, flags, last_value=last_value)
    assert together.is_contiguous()
    for agent in range(2):
        assert_within_rule(together[..., agent], expected, loop, torch.float32)


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 9), 1), ((2, 3, 9), 2), ((9, 2, 3), 0), ((2, 3, 9, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int) -> None:
    draw = Draw(shape)
    row_shape = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    by_step = {name: draw.numbers() for name in ("rewards", "bootstrap_values")}
    by_step |= {name: draw.flags("random") for name in ("terminateds", "truncateds")}
    by_row = {name: by_step[name] for name in ("rewards", "terminateds")} | {"last_value": draw.numbers(row_shape)}
    for given in (by_step, by_row):
        expected = reference.compute_discounted_returns(**given, time_dim=dim)
        loop = reference.compute_discounted_returns(**given, time_dim=dim, dtype=torch.float32)
        actual = compute_discounted_returns(**on_kernel_device(given), time_dim=dim)
        assert_within_rule(actual, expected, loop, torch.float32)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], dim: int) -> None:
    x = torch.ones(shape, device=DEVICE)
    returns = compute_discounted_returns(x, x, last_value=torch.ones(shape[1 - dim], device=DEVICE), time_dim=dim)
    assert returns.shape == shape
    assert returns.device == x.device


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("gamma", [0.94, 0.99, 0.999, 0.9999, 1.0])
@pytest.mark.parametrize(("rows", "steps"), [(64, 512), (64, 2048), (3, 20001)])
def test_long_rows_and_decays_near_one(rows: int, steps: int, gamma: float) -> None:
    arguments = drawn((rows, steps), "none", "last_value") | {"gamma": gamma}
    for given in (arguments, arguments | {"gamma": torch.full((rows, steps), gamma)}):
        expected = reference.compute_discounted_returns(**given)
        loop = reference.compute_discounted_returns(**given, dtype=torch.float32)
        assert_within_rule(compute_discounted_returns(**on_kernel_device(given)), expected, loop, torch.float32)


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize(
    ("rows", "steps", "gamma"),
    [
        *((8, 131072, gamma) for gamma in (0.95, 0.999, 1.0)),
        pytest.param(1, 1048576, 0.999, marks=pytest.mark.slow),
    ],
)
def test_few_long_rows(rows: int, steps: int, gamma: float) -> None:
    arguments = drawn((rows, steps), "none", "last_value") | {"gamma": gamma}
    expected = reference.compute_discounted_returns(**arguments)
    loop = reference.compute_discounted_returns(**arguments, dtype=torch.float32)
    assert_within_rule(compute_discounted_returns(**on_kernel_device(arguments)), expected, loop, torch.float32)


# (rows, steps): one row shares groups with the next where time is contiguous, several lie side by side.
PACKED = [(1, 61), (3, 29)] if INTERPRETED else [(1, 61), (1, 4099), (1, 40000), (3, 4099), (40, 300)]


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("option", ["last_value", "everything"] if INTERPRETED else OPTIONS)
@pytest.mark.parametrize("shape", PACKED, ids=str)
def test_packed_sequences(shape: tuple[int, int], option: str, masked: bool) -> None:
    arguments = drawn(shape, "random", option)
    arguments = with_mask(arguments) if masked else arguments
    assert_packs(compute_discounted_returns, reference.compute_discounted_returns, arguments)
