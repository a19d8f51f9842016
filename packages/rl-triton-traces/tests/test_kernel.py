"""compute_eligibility_traces by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.engine import environment
from rl_triton_core.testing.calls import (
    BOUNDARIES,
    Draw,
    assert_obeys_rule,
    assert_obeys_rule_as_given,
    assert_packs,
    on_kernel_device,
    time_first,
)
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_core.testing.plans import DENSE_STRATEGIES, STRATEGIES, forced_plan
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_traces import compute_eligibility_traces, reference
from rl_triton_traces.api import KINDS
from torch import Tensor

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_eligibility_traces.json")
# In the interpreter every tile costs its full size: rows of 33 steps, in one of 4096, are the dearest.
SHAPES = [(1, 1), (3, 2), (2, 33), (2, 7), (8, 9), (3, 16), (1, 64)]
SOME_SHAPES = SHAPES[4:6]
if not INTERPRETED:
    SHAPES = [(1, 1), (3, 2), (4096, 1), (127, 7), (4096, 9), (4096, 31), (3, 63), (127, 64), (4096, 65), (4096, 100)]
    SHAPES += [(127, 131), (4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
    SOME_SHAPES = SHAPES[3::2]


VARIANTS = ("accumulating", "accumulating, ratios", "replacing", "replacing, ratios", "dutch")
OTHER_VARIANTS = VARIANTS[1:]
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def every_variant_of(shapes: list[tuple[int, int]]) -> pytest.MarkDecorator:
    """Shapes for every variant; in the interpreter one of them for all but the first variant."""
    several = [(shape, variant) for variant in VARIANTS for shape in shapes]
    if INTERPRETED:
        several = [pair for pair in several if pair[1] == VARIANTS[0] or pair[0] == SOME_SHAPES[0]]
    return pytest.mark.parametrize(("shape", "variant"), several, ids=str)


def drawn(
    shape: tuple[int, int],
    boundaries: str,
    variant: str = "accumulating",
    *,
    seeded: bool = True,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Arguments on the CPU, environment-major."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {"gradients": draw.numbers(), "dones": draw.flags(boundaries)}
    arguments |= {"gamma": 0.99, "lambda_": 0.95, "kind": variant.split(",")[0]}
    if seeded:
        arguments["seed_values"] = draw.numbers(shape[:1])
    if arguments["kind"] == "replacing":
        arguments["gradients"][draw.numbers() < 0.8] = 0.0
    elif arguments["kind"] == "dutch":
        arguments["gradients"], arguments["alpha"] = (draw.numbers() > 0.8).to(dtype), 0.4
    if variant.endswith("ratios"):
        # Around 1, and beyond it for as long as an episode lasts.
        arguments["ratios"] = (0.2 * draw.numbers()).exp()
    return arguments


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Both layouts of arguments on the CPU."""
    assert_obeys_rule(compute_eligibility_traces, reference.compute_eligibility_traces, arguments, dtype)


def check_as_given(arguments: dict[str, Any]) -> Tensor:
    """One call on the kernels' device."""
    return assert_obeys_rule_as_given(compute_eligibility_traces, reference.compute_eligibility_traces, arguments)[0]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in case.inputs.items()}
    loop = reference.compute_eligibility_traces(**given, **case.params, dtype=torch.float32)
    actual = compute_eligibility_traces(**on_kernel_device(given), **case.params)
    assert_within_rule(actual, case.expected["traces"], loop, dtype)


@pytest.mark.parametrize("seeded", [False, True], ids=["from nothing", "seeded"])
@every_variant_of(SHAPES)
def test_shapes(shape: tuple[int, int], seeded: bool, variant: str) -> None:
    check(drawn(shape, "random", variant, seeded=seeded))


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@every_variant_of(SOME_SHAPES)
def test_boundaries(shape: tuple[int, int], boundaries: str, variant: str) -> None:
    check(drawn(shape, boundaries, variant))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@every_variant_of(SOME_SHAPES)
def test_dtypes(shape: tuple[int, int], dtype: torch.dtype, variant: str) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", variant, dtype=dtype), dtype)


@every_variant
def test_integers_count_as_float32(variant: str) -> None:
    arguments = drawn(SOME_SHAPES[1], "random", variant)
    for name in ("gradients", "seed_values", "ratios"):
        if name in arguments:
            arguments[name] = (4 * arguments[name]).long()
    check(arguments)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64], ids=str)
def test_flags_of_any_dtype(dtype: torch.dtype) -> None:
    arguments = drawn(SOME_SHAPES[1], "random")
    arguments["dones"] = arguments["dones"].to(dtype) * (1 if dtype == torch.bool else 3)
    check(arguments)


@pytest.mark.parametrize(("gamma", "lambda_"), [(1.0, 1.0), (0.999, 1.0), (0.5, 0.5), (0.0, 0.9), (0.0, 0.0)])
def test_decays(gamma: float, lambda_: float) -> None:
    for dtype in (torch.float32, torch.float64):
        check(drawn((2, 40), "random", dtype=dtype) | {"gamma": gamma, "lambda_": lambda_}, dtype)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@every_variant_of(SHAPES[3:7] if INTERPRETED else SHAPES[3:])
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int], poison: float, variant: str) -> None:
    arguments = drawn(shape, "random", variant)
    generator = torch.Generator().manual_seed(1)
    for name in ("gradients", "seed_values", "ratios"):
        # An infinite factor makes NaN of a 0, whichever way round it is multiplied with others.
        factor = name == "ratios" or (name == "gradients" and variant == "dutch")
        if name in arguments and not (factor and poison == math.inf):
            x = arguments[name]
            x[torch.rand(x.shape, generator=generator) < 0.05] = poison
    check(arguments)


@pytest.mark.parametrize("variant", ["replacing", "replacing, ratios"])
@pytest.mark.parametrize("shape", [(3, 2), *SOME_SHAPES], ids=str)
def test_nothing_before_a_replaced_entry_is_read(shape: tuple[int, int], variant: str) -> None:
    arguments = drawn(shape, "none", variant)
    rows, steps = shape
    arguments["seed_values"][:] = math.nan
    arguments["gradients"][:, 0] = torch.tensor([0.0, 1.0, math.nan]).repeat(rows)[:rows]
    arguments["gradients"][:, steps // 2] = 2.0
    check(arguments)
    traces = compute_eligibility_traces(**on_kernel_device(arguments))
    assert traces[:, steps // 2 :].isfinite().all()
    assert traces[:3, 0].isfinite().tolist() == [False, True, False][:rows]


def test_ratios_of_zero_end_a_trace() -> None:
    for variant in ("accumulating, ratios", "replacing, ratios"):
        arguments = drawn(SOME_SHAPES[1], "random", variant)
        arguments["ratios"][:, ::3] = 0.0
        check(arguments)
        assert (compute_eligibility_traces(**on_kernel_device(arguments))[:, ::3] == 0).all()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_step_sizes(alpha: float) -> None:
    for dtype in (torch.float32, torch.float64):
        check(drawn(SOME_SHAPES[0], "random", "dutch", dtype=dtype) | {"alpha": alpha}, dtype)


@every_variant
@pytest.mark.parametrize("shape", [(4, 10), (3, 16)], ids=str)
def test_a_seed_stays_in_its_row(shape: tuple[int, int], variant: str) -> None:
    """Also where rows lie end to end in a tile: the last step of a row stands before the first one of the next."""
    arguments = drawn(shape, "last", variant)
    arguments["seed_values"][::2] = math.nan
    if "ratios" in arguments:
        arguments["ratios"][1::2, -1] = math.nan
    check(arguments)
    arguments["dones"][:, 0] = True
    check(arguments)
    assert compute_eligibility_traces(**on_kernel_device(arguments))[:, 1:-1].isfinite().all()


@pytest.fixture
def without_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of a tensor is an error."""
    monkeypatch.setattr(environment, "PERFORMANCE_WARNINGS", True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"\w+: copied")
        yield


@pytest.mark.usefixtures("without_copies")
@pytest.mark.parametrize(
    "shape", [(2, 9, 3), (3, 8, 4), (1, 24, 2)] + ([] if INTERPRETED else [(64, 129, 33)]), ids=str
)
def test_features_share_flags_by_a_view(shape: tuple[int, int, int]) -> None:
    draw = Draw(shape)
    given = on_kernel_device({"gradients": draw.numbers(), "dones": Draw(shape[:2]).flags("random", 0.3)})
    given |= {"gamma": 0.9, "lambda_": 0.8, "seed_values": draw.numbers((shape[0], shape[2])).to(DEVICE)}
    given["dones"] = given["dones"].unsqueeze(-1).expand(shape)
    assert given["dones"].stride(-1) == 0
    inner_time = given["gradients"].transpose(1, 2).contiguous().transpose(1, 2)
    ratios = (0.2 * Draw(shape[:2]).numbers()).exp().to(DEVICE).unsqueeze(-1).expand(shape)
    for gradients in (given["gradients"], inner_time):
        for more in ({}, {"ratios": ratios}):
            traces = check_as_given(given | {"gradients": gradients, **more})
            assert traces.stride() == gradients.stride()


@pytest.mark.usefixtures("without_copies")
def test_views_are_read_in_place() -> None:
    rows, steps = SOME_SHAPES[1]
    given = on_kernel_device(drawn((rows, steps), "random"))
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    offset = torch.full((rows * steps + 1,), math.nan, device=DEVICE)[1:].view(rows, steps)
    for view in (stepped, offset):
        view.copy_(given["gradients"])
    seeds = torch.full((rows, 2), math.nan, device=DEVICE)[:, 1]
    seeds.copy_(given["seed_values"])
    turned = time_first(given["dones"]).t()
    check_as_given(given | {"gradients": stepped, "dones": turned})
    for ratios in (stepped.abs_(), offset.abs(), time_first(stepped).t()):
        for kind in ("accumulating", "replacing"):
            check_as_given(given | {"ratios": ratios, "kind": kind})
    check_as_given(given | {"gradients": offset, "seed_values": seeds})
    check_as_given(given | {"gradients": time_first(given["gradients"]).t()})
    # One flag per environment for all steps, and one per step for all environments.
    check_as_given(given | {"dones": given["dones"][:, :1].expand(rows, steps)})
    check_as_given(given | {"dones": given["dones"][:1].expand(rows, steps)})


@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 9), 1), ((2, 3, 9), 2), ((9, 2, 3), 0), ((2, 3, 9, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int) -> None:
    draw = Draw(shape)
    row_shape = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    given = {"gradients": draw.numbers(), "dones": draw.flags("random"), "seed_values": draw.numbers(row_shape)}
    check_as_given(on_kernel_device(given) | {"gamma": 0.9, "lambda_": 0.8, "time_dim": dim})


def around_tiles(variant: str) -> dict[str, Any]:
    """Rows of three tiles, with what is special where a tile begins or ends."""
    arguments = drawn((2, 43), "random", variant)
    arguments["dones"][0, 15] = arguments["dones"][1, 31] = arguments["dones"][1, 30] = True
    arguments["gradients"][0, 3] = math.nan
    if arguments["kind"] == "replacing":
        # A tile whose first step replaces, and one in which nothing does.
        arguments["gradients"][0, 16], arguments["gradients"][1, 15:32] = 1.0, 0.0
    return arguments


@pytest.mark.skipif(not INTERPRETED, reason="a GPU gets these plans from problems of their size")
@every_variant
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(strategy: str, variant: str) -> None:
    with forced_plan(strategy):
        check(around_tiles(variant))


@pytest.mark.skipif(not INTERPRETED, reason="a GPU gets these plans from problems of their size")
@pytest.mark.parametrize("variant", ["replacing, ratios", "dutch"])
@pytest.mark.parametrize("strategy", DENSE_STRATEGIES)
def test_dense_strategies(strategy: str, variant: str) -> None:
    with forced_plan(strategy):
        check_as_given(around_tiles(variant))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], dim: int) -> None:
    x = torch.ones(shape, device=DEVICE)
    options: list[dict[str, Any]] = [{"kind": kind, **more} for kind in KINDS[:2] for more in ({}, {"ratios": x})]
    for each in (*options, {"kind": "dutch", "alpha": 0.5}):
        seed_values = torch.ones(shape[1 - dim], device=DEVICE)
        traces = compute_eligibility_traces(x, x, 0.9, 0.8, seed_values, time_dim=dim, **each)
        assert traces.shape == shape
        assert traces.device == x.device


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("decay", [0.94, 0.99, 0.999, 0.9999, 1.0])
@pytest.mark.parametrize(("rows", "steps"), [(64, 512), (64, 2048), (3, 20001)])
def test_long_rows_and_decays_near_one(rows: int, steps: int, decay: float) -> None:
    check_as_given(on_kernel_device(drawn((rows, steps), "none")) | {"gamma": decay, "lambda_": 1.0})


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("variant", OTHER_VARIANTS)
@pytest.mark.parametrize("decay", [0.99, 0.999, 1.0])
@pytest.mark.parametrize(("rows", "steps"), [(64, 2048), (3, 20001), (8, 131072)])
def test_long_rows_of_other_traces(rows: int, steps: int, decay: float, variant: str) -> None:
    arguments = drawn((rows, steps), "none", variant) | {"gamma": decay, "lambda_": 1.0}
    if "ratios" in arguments:
        # Around 1 in the mean, so that what they compound to stays in range.
        arguments["ratios"] = (0.02 * Draw((rows, steps)).numbers()).exp()
    check_as_given(on_kernel_device(arguments))


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize(
    ("rows", "steps", "decay"),
    [
        *((8, 131072, decay) for decay in (0.95, 0.999, 1.0)),
        pytest.param(1, 1048576, 0.999, marks=pytest.mark.slow),
    ],
)
def test_few_long_rows(rows: int, steps: int, decay: float) -> None:
    check_as_given(on_kernel_device(drawn((rows, steps), "none")) | {"gamma": decay, "lambda_": 1.0})


# (rows, steps): one row shares groups with the next where time is contiguous, several lie side by side.
PACKED = [(1, 61), (3, 29)] if INTERPRETED else [(1, 61), (1, 4099), (1, 40000), (3, 4099), (40, 300)]


@pytest.mark.parametrize("seeded", [False, True], ids=["from nothing", "seeded"])
@every_variant
@pytest.mark.parametrize("shape", PACKED, ids=str)
def test_packed_sequences(shape: tuple[int, int], variant: str, seeded: bool) -> None:
    arguments = drawn(shape, "random", variant, seeded=seeded)
    assert_packs(compute_eligibility_traces, reference.compute_eligibility_traces, arguments)
