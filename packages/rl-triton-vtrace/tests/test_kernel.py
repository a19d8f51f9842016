"""compute_vtrace by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

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
from rl_triton_vtrace import compute_vtrace, reference
from torch import Tensor

pytest.importorskip("triton")

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_vtrace.json")
# The interpreter takes a second for rows that share no groups, (2, 9), and a fifth of it for others.
SHAPES = [(8, 9), (3, 16), (1, 1), (3, 2), (1, 7), (2, 9)]
if not INTERPRETED:
    SHAPES = [(4096, 9), (127, 64), (1, 1), (3, 2), (4096, 1), (127, 7), (4096, 31), (3, 63), (4096, 65), (4096, 100)]
    SHAPES += [(127, 131), (4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
OPTIONS = ["nothing", "last_value", "bootstrap_values", "next_values", "per-step", "truncateds", "clips", "no clips"]
OPTIONS += ["leak"]


def drawn(
    shape: tuple[int, ...], boundaries: str, option: str, dtype: torch.dtype = torch.float32, spread: float = 0.5
) -> dict[str, Any]:
    """Arguments on the CPU, environment-major; rewards first, whose layout the outputs have."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "values")}
    arguments |= {name: spread * draw.numbers() for name in ("log_pi_target", "log_pi_behavior")}
    arguments |= {"terminateds": draw.flags(boundaries), "lambda_": 0.95}
    if option in ("last_value", "clips", "no clips", "leak"):
        arguments["last_value"] = draw.numbers(shape[:1])
    if option in ("bootstrap_values", "next_values"):
        arguments |= {option: draw.numbers(), "truncateds": draw.flags("random")}
    if option == "per-step":
        arguments |= {"gamma": draw.numbers().sigmoid(), "lambda_": draw.numbers().sigmoid()}
    if option == "truncateds":
        arguments |= {"truncateds": draw.flags("random"), "last_value": draw.numbers(shape[:1])}
    if option == "clips":
        arguments |= {"rho_bar": 1.5, "c_bar": 0.9, "pg_rho_bar": 2.5}
    if option == "leak":
        arguments |= {"rho_bar": 1.5, "c_bar": 0.9, "pg_rho_bar": 1.0, "leak": 0.3}
    if option == "no clips":
        arguments |= {"rho_bar": None, "c_bar": math.inf}
    return arguments


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    assert_obeys_rule(compute_vtrace, reference.compute_vtrace, arguments, dtype)


def check_outputs(actual: tuple[Tensor, ...], arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """A call's outputs by the rule, where the layout is the test's own."""
    truth, loop = (reference.compute_vtrace(**arguments, dtype=d) for d in (torch.float64, torch.float32))
    for output, expected, loop32 in zip(actual, truth, loop, strict=True):
        assert_within_rule(output, expected, loop32, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in case.inputs.items()}
    loop = reference.compute_vtrace(**given, **case.params, dtype=torch.float32)
    actual = compute_vtrace(**on_kernel_device(given), **case.params)
    for output, name, loop32 in zip(actual, ("targets", "advantages"), loop, strict=True):
        assert_within_rule(output, case.expected[name], loop32, dtype)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES, ids=str)
def test_options(shape: tuple[int, int], option: str) -> None:
    check(drawn(shape, "random", option))


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES, ids=str)
def test_flags_at_starts(shape: tuple[int, int], option: str) -> None:
    arguments = with_flags_of_next(drawn(shape, "random", option))
    assert_obeys_rule(FlagsAtStarts(compute_vtrace), FlagsAtStarts(reference.compute_vtrace), arguments)


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("starts", [False, True], ids=["ends_at", "starts_at"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES, ids=str)
def test_transparent_steps(shape: tuple[int, int], option: str, starts: bool) -> None:
    arguments = with_mask(drawn(shape, "random", option))
    if starts:
        arguments = with_flags_of_next(arguments)
        assert_obeys_rule(FlagsAtStarts(compute_vtrace), FlagsAtStarts(reference.compute_vtrace), arguments)
    else:
        check(arguments)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_shapes(shape: tuple[int, int]) -> None:
    check(drawn(shape, "random", "clips"))


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES[::3], ids=str)
def test_boundaries(shape: tuple[int, int], boundaries: str) -> None:
    check(drawn(shape, boundaries, "bootstrap_values"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("option", ["per-step"] if INTERPRETED else ["per-step", "last_value", "leak"])
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES[:6], ids=str)
def test_dtypes(shape: tuple[int, int], option: str, dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", option, dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
def test_flags_of_any_dtype(dtype: torch.dtype) -> None:
    arguments = drawn(SHAPES[1], "random", "bootstrap_values")
    for name in ("terminateds", "truncateds"):
        arguments[name] = arguments[name].to(dtype) * (1 if dtype == torch.bool else 3)
    check(arguments)


@pytest.mark.parametrize("option", ["bootstrap_values", "next_values"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else [*SHAPES[:2], *SHAPES[5:]], ids=str)
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int], poison: float, option: str) -> None:
    """Ratios near 1: a product of small ones would leave the range of a float, and both a number and NaN be right."""
    arguments = drawn(shape, "random", option, spread=0.02)
    generator = torch.Generator().manual_seed(1)
    for name in ("rewards", "values", "log_pi_target", "log_pi_behavior", option):
        if poison == math.inf and name == "log_pi_behavior":
            continue  # A ratio of 0 is no poison.
        arguments[name][torch.rand(shape, generator=generator) < 0.04] = poison
    check(arguments)


@pytest.mark.parametrize("ending", ["terminateds", "truncateds"])
@pytest.mark.parametrize("poisoned", ["rewards", "values", "log_pi_target"])
def test_the_next_episode_reaches_nothing(poisoned: str, ending: str) -> None:
    """The first episode of row i has i + 1 steps, and the second is NaN throughout."""
    rows = steps = 10 if INTERPRETED else 100
    arguments = drawn((rows, steps), "none", "bootstrap_values") | {"pg_rho_bar": 2.0}
    first, second = torch.ones(rows, steps).tril().bool(), torch.ones(rows, steps).triu(1).bool()
    for flags in ("terminateds", "truncateds"):
        arguments[flags] = torch.zeros(rows, steps, dtype=torch.bool)
    arguments[ending].fill_diagonal_(True)
    arguments[poisoned][second] = math.nan
    for expected in reference.compute_vtrace(**arguments):
        assert expected[first].isfinite().all()
        assert expected[second].isnan().all()
    check(arguments)


def test_values_behind_a_termination_are_not_read() -> None:
    rows, steps = SHAPES[0]
    arguments = drawn((rows, steps), "none", "last_value")
    arguments["terminateds"][:, [steps // 2, -1]] = True
    arguments["last_value"][:] = math.nan
    arguments["values"][:, steps // 2 + 1] = math.nan
    for expected in reference.compute_vtrace(**arguments):
        assert expected[:, : steps // 2 + 1].isfinite().all()
    check(arguments)


def extreme_ratios(shape: tuple[int, int]) -> dict[str, Any]:
    """Ratios that overflow, vanish and are exactly 0, in every tenth step each."""
    arguments = drawn(shape, "random", "last_value")
    kind = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    for i, extreme in enumerate((1000.0, -1000.0, -math.inf, math.inf)):
        arguments["log_pi_target"][(0.1 * i <= kind) & (kind < 0.1 * (i + 1))] = extreme
    return arguments


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("clips", [{}, {"rho_bar": 1.5, "c_bar": 0.9, "pg_rho_bar": 2.5}], ids=["one clip", "clips"])
# Not of one or two steps: float64 is allowed an ulp per doubling of the steps, and exp alone takes one.
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else [s for s in SHAPES if s[1] > 2], ids=str)
def test_a_clip_bounds_every_ratio(shape: tuple[int, int], clips: dict[str, float], dtype: torch.dtype) -> None:
    arguments = extreme_ratios(shape) | clips
    for name in ("rewards", "values", "log_pi_target", "log_pi_behavior", "last_value"):
        arguments[name] = arguments[name].to(dtype)
    assert all(expected.isfinite().all() for expected in reference.compute_vtrace(**arguments))
    check(arguments, dtype)


@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES[:12], ids=str)
def test_an_infinite_ratio_without_a_clip_stays_in_its_episode(shape: tuple[int, int]) -> None:
    arguments = drawn(shape, "random", "last_value", spread=0.02) | {"rho_bar": None, "c_bar": None}
    arguments["log_pi_target"][torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.1] = 1000.0
    arguments["log_pi_target"][0, -1] = 1000.0
    outputs = compute_vtrace(**on_kernel_device(arguments))
    truth, loop = (reference.compute_vtrace(**arguments, dtype=d) for d in (torch.float64, torch.float32))
    for output, expected, loop32 in zip(outputs, truth, loop, strict=True):
        # Whether inf or NaN reaches a step depends on the order in which steps are combined.
        actual, finite = output.cpu(), expected.isfinite()
        assert torch.equal(actual.isfinite(), finite)
        assert not finite.all()
        assert_within_rule(*(x.where(finite, 0.0) for x in (actual, expected, loop32)), torch.float32)


@pytest.mark.parametrize("clips", [{}, {"rho_bar": None, "c_bar": None}], ids=["clipped", "unclipped"])
def test_a_ratio_that_is_nan_is_no_clip(clips: dict[str, Any]) -> None:
    """Two probabilities of 0 have no ratio."""
    rows, steps = SHAPES[0]
    arguments = drawn((rows, steps), "none", "last_value") | clips
    arguments["terminateds"][:, 1] = True
    for name in ("log_pi_target", "log_pi_behavior"):
        arguments[name][:, 4] = -math.inf
    for expected in reference.compute_vtrace(**arguments):
        assert expected[0].isnan().tolist() == [2 <= t <= 4 for t in range(steps)]
    check(arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bound", [1.0, 1.5, None])
@pytest.mark.parametrize("leak", [1e-3, 1.0])
def test_what_leaks(leak: float, bound: float | None, dtype: torch.dtype) -> None:
    """Ratios that are not finite, too: above a clip they leak whole, and the last step of a row has one."""
    arguments = drawn(SHAPES[0], "random", "last_value", dtype, spread=0.02) | {"lambda_": 1.0}
    arguments |= {"rho_bar": bound, "c_bar": bound, "leak": leak}
    arguments["log_pi_target"][::2] += 0.5
    check(arguments, dtype)
    arguments["terminateds"][:] = True
    for i, extreme in enumerate((1000.0, -1000.0, -math.inf, math.nan)):
        arguments["log_pi_target"][:, i] = extreme
    check(arguments, dtype)


def test_a_leak_of_the_integer_0_is_no_leak() -> None:
    arguments = extreme_ratios(SHAPES[0]) | {"leak": 0}
    assert all(expected.isfinite().all() for expected in reference.compute_vtrace(**arguments))
    check(arguments)


def test_views_are_read_in_place() -> None:
    rows, steps = SHAPES[0]
    arguments = drawn((rows, steps), "random", "last_value")
    given = on_kernel_device(arguments)
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    stepped.copy_(given["rewards"])
    offset = torch.full((rows * steps + 1,), math.nan, device=DEVICE)[1:].view(rows, steps)
    offset.copy_(given["values"])
    views = {"rewards": stepped, "values": offset}
    views |= {name: time_first(given[name]).t() for name in ("log_pi_target", "terminateds")}
    outputs = compute_vtrace(**(given | views))
    check_outputs(outputs, arguments)
    assert all(output.is_contiguous() for output in outputs)
    agents = {name: torch.stack([given[name]] * 2, -1) for name in ("values", "log_pi_target", "log_pi_behavior")}
    shared = {name: given[name].unsqueeze(-1).expand(-1, -1, 2) for name in ("rewards", "terminateds")}
    last_value = given["last_value"].unsqueeze(-1).expand(-1, 2)
    together = compute_vtrace(**agents, **shared, last_value=last_value, lambda_=given["lambda_"])
    for agent in range(2):
        check_outputs(tuple(output[..., agent] for output in together), arguments)


@pytest.mark.parametrize(("shape", "dim"), [((2, 8, 3), 1), ((2, 3, 8), 2), ((9, 2, 3), 0), ((2, 3, 8, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int) -> None:
    draw = Draw(shape)
    row_shape = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    names = ("rewards", "values", "log_pi_target", "log_pi_behavior")
    arguments: dict[str, Any] = {name: draw.numbers() for name in names} | {"pg_rho_bar": 2.0, "time_dim": dim}
    arguments["terminateds"] = draw.flags("random")
    for more in (
        {"bootstrap_values": draw.numbers(), "truncateds": draw.flags("random")},
        {"last_value": draw.numbers(row_shape)},
    ):
        outputs = compute_vtrace(**on_kernel_device(arguments | more))
        check_outputs(outputs, arguments | more)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], dim: int) -> None:
    x = torch.ones(shape, device=DEVICE)
    outputs = compute_vtrace(x, x, x, x, x, last_value=torch.ones(shape[1 - dim], device=DEVICE), time_dim=dim)
    for output in outputs:
        assert output.shape == shape
        assert output.device == x.device


def test_inputs_that_want_gradients_get_none() -> None:
    arguments = drawn(SHAPES[0], "random", "last_value")
    given = on_kernel_device(arguments)
    for name in ("values", "log_pi_target"):
        given[name].requires_grad_()
    for _ in range(2):
        outputs = compute_vtrace(**given)
        assert not any(output.requires_grad for output in outputs)
        check_outputs(outputs, arguments)


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("spread", [0.0, 0.002, 0.5])
@pytest.mark.parametrize("gamma", [0.94, 0.99, 0.999, 1.0])
@pytest.mark.parametrize("option", ["last_value", "no clips"])
@pytest.mark.parametrize(("rows", "steps"), [(64, 512), (64, 2048), (3, 9001)])
def test_long_rows(rows: int, steps: int, option: str, gamma: float, spread: float) -> None:
    """Ratios of 1, a little off it and of any size, with and without a clip."""
    if option == "no clips" and spread == 0.5:
        pytest.skip("products of so many ratios leave the range of a float")
    arguments = drawn((rows, steps), "none", option, spread=spread) | {"gamma": gamma, "lambda_": 1.0}
    check_outputs(compute_vtrace(**on_kernel_device(arguments)), arguments)


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("spread", [0.002, 0.5])
def test_few_long_rows(spread: float) -> None:
    arguments = drawn((8, 131072), "none", "last_value", spread=spread) | {"gamma": 0.999, "lambda_": 1.0}
    check_outputs(compute_vtrace(**on_kernel_device(arguments)), arguments)


# (rows, steps): one row shares groups with the next where time is contiguous, several lie side by side.
PACKED = [(1, 61), (3, 29)] if INTERPRETED else [(1, 61), (1, 4099), (1, 40000), (3, 4099), (40, 300)]


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("option", ["last_value", "next_values"] if INTERPRETED else OPTIONS)
@pytest.mark.parametrize("shape", PACKED, ids=str)
def test_packed_sequences(shape: tuple[int, int], option: str, masked: bool) -> None:
    arguments = drawn(shape, "random", option)
    assert_packs(compute_vtrace, reference.compute_vtrace, with_mask(arguments) if masked else arguments)
