"""compute_episodic_prefix_sum by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.boundaries import FLAG_CONVENTIONS
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
from rl_triton_core.testing.plans import STRATEGIES, forced_plan
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_prefix import compute_episodic_prefix_sum, reference
from torch import Tensor

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_episodic_prefix_sum.json")
# In the interpreter every tile costs its full size: rows of 33 steps, in one of 4096, are the dearest.
SHAPES = [(1, 1), (3, 2), (2, 33), (2, 7), (8, 9), (3, 16), (1, 64)]
SOME_SHAPES = SHAPES[4:6]
if not INTERPRETED:
    SHAPES = [(1, 1), (3, 2), (4096, 1), (127, 7), (4096, 9), (4096, 31), (3, 63), (127, 64), (4096, 65), (4096, 100)]
    SHAPES += [(127, 131), (4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
    SOME_SHAPES = SHAPES[3::2]

both_conventions = pytest.mark.parametrize("boundary", FLAG_CONVENTIONS)


def drawn(
    shape: tuple[int, int], boundaries: str, boundary: str, *, seeded: bool = True, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Arguments on the CPU, environment-major."""
    draw = Draw(shape, dtype)
    arguments = {"inputs": draw.numbers(), "dones": draw.flags(boundaries), "boundary": boundary}
    return arguments | ({"seed_values": draw.numbers(shape[:1])} if seeded else {})


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Both layouts of arguments on the CPU."""
    assert_obeys_rule(compute_episodic_prefix_sum, reference.compute_episodic_prefix_sum, arguments, dtype)


def check_as_given(arguments: dict[str, Any]) -> Tensor:
    """One call on the kernels' device."""
    return assert_obeys_rule_as_given(compute_episodic_prefix_sum, reference.compute_episodic_prefix_sum, arguments)[0]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in case.inputs.items()}
    loop = reference.compute_episodic_prefix_sum(**given, **case.params, dtype=torch.float32)
    actual = compute_episodic_prefix_sum(**on_kernel_device(given), **case.params)
    assert_within_rule(actual, case.expected["prefix_sums"], loop, dtype)


@both_conventions
@pytest.mark.parametrize("seeded", [False, True], ids=["from nothing", "seeded"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, int], seeded: bool, boundary: str) -> None:
    check(drawn(shape, "random", boundary, seeded=seeded))


@both_conventions
@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=str)
def test_boundaries(shape: tuple[int, int], boundaries: str, boundary: str) -> None:
    check(drawn(shape, boundaries, boundary))


@both_conventions
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=str)
def test_dtypes(shape: tuple[int, int], dtype: torch.dtype, boundary: str) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", boundary, dtype=dtype), dtype)


@both_conventions
def test_integers_are_summed_exactly(boundary: str) -> None:
    arguments = drawn(SOME_SHAPES[1], "random", boundary)
    for name in ("inputs", "seed_values"):
        arguments[name] = (1000 * arguments[name]).long()
    check(arguments)
    prefix_sums = compute_episodic_prefix_sum(**on_kernel_device(arguments))
    assert torch.equal(prefix_sums.cpu().double(), reference.compute_episodic_prefix_sum(**arguments))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64], ids=str)
def test_flags_of_any_dtype(dtype: torch.dtype) -> None:
    for boundary in FLAG_CONVENTIONS:
        arguments = drawn(SOME_SHAPES[1], "random", boundary)
        arguments["dones"] = arguments["dones"].to(dtype) * (1 if dtype == torch.bool else 3)
        check(arguments)


@both_conventions
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("shape", SOME_SHAPES if INTERPRETED else SHAPES[3:], ids=str)
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int], poison: float, boundary: str) -> None:
    arguments = drawn(shape, "random", boundary)
    generator = torch.Generator().manual_seed(1)
    for name in ("inputs", "seed_values"):
        x = arguments[name]
        x[torch.rand(x.shape, generator=generator) < 0.05] = poison
    check(arguments)


@pytest.mark.parametrize("shape", [(4, 10), (3, 16)], ids=str)
def test_a_seed_stays_in_its_row(shape: tuple[int, int]) -> None:
    """Also where rows lie end to end in a tile: the last step of a row stands before the first one of the next."""
    arguments = drawn(shape, "last", "ends_at")
    arguments["seed_values"][::2] = math.nan
    check(arguments)
    arguments["dones"][:, 0] = True
    check(arguments)
    assert compute_episodic_prefix_sum(**on_kernel_device(arguments))[:, 1:].isfinite().all()
    # At the first step of an episode the flag hides the seed of its own row, and of no other.
    arguments |= {"boundary": "starts_at"}
    check(arguments)
    assert compute_episodic_prefix_sum(**on_kernel_device(arguments)).isfinite().all()
    arguments["dones"][1::2, 0] = False
    arguments["seed_values"][1::2] = 2.0
    check(arguments)


def test_the_two_conventions_take_turns() -> None:
    """A call that was prepared for one convention must not serve the other."""
    arguments = drawn(SOME_SHAPES[1], "random", "ends_at")
    arguments["dones"][:, ::2] = True
    given = on_kernel_device(arguments)
    for boundary in FLAG_CONVENTIONS * 3:
        check_as_given(given | {"boundary": boundary})


@pytest.fixture
def without_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of a tensor is an error."""
    monkeypatch.setattr(environment, "PERFORMANCE_WARNINGS", True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"\w+: copied")
        yield


@pytest.mark.usefixtures("without_copies")
@both_conventions
@pytest.mark.parametrize(
    "shape", [(2, 9, 3), (3, 8, 4), (1, 24, 2)] + ([] if INTERPRETED else [(64, 129, 33)]), ids=str
)
def test_features_share_flags_by_a_view(shape: tuple[int, int, int], boundary: str) -> None:
    draw = Draw(shape)
    given = on_kernel_device({"inputs": draw.numbers(), "dones": Draw(shape[:2]).flags("random", 0.3)})
    given |= {"boundary": boundary, "seed_values": draw.numbers((shape[0], shape[2])).to(DEVICE)}
    given["dones"] = given["dones"].unsqueeze(-1).expand(shape)
    assert given["dones"].stride(-1) == 0
    inner_time = given["inputs"].transpose(1, 2).contiguous().transpose(1, 2)
    for inputs in (given["inputs"], inner_time):
        prefix_sums = check_as_given(given | {"inputs": inputs})
        assert prefix_sums.stride() == inputs.stride()


@pytest.mark.usefixtures("without_copies")
@both_conventions
def test_views_are_read_in_place(boundary: str) -> None:
    rows, steps = SOME_SHAPES[1]
    given = on_kernel_device(drawn((rows, steps), "random", boundary))
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    offset = torch.full((rows * steps + 1,), math.nan, device=DEVICE)[1:].view(rows, steps)
    for view in (stepped, offset):
        view.copy_(given["inputs"])
    seeds = torch.full((rows, 2), math.nan, device=DEVICE)[:, 1]
    seeds.copy_(given["seed_values"])
    turned = time_first(given["dones"]).t()
    check_as_given(given | {"inputs": stepped, "dones": turned})
    check_as_given(given | {"inputs": offset, "seed_values": seeds})
    check_as_given(given | {"inputs": time_first(given["inputs"]).t()})
    # One flag per environment for all steps, and one per step for all environments.
    check_as_given(given | {"dones": given["dones"][:, :1].expand(rows, steps)})
    check_as_given(given | {"dones": given["dones"][:1].expand(rows, steps)})


@both_conventions
@pytest.mark.parametrize(("shape", "dim"), [((2, 3, 9), 1), ((2, 3, 9), 2), ((9, 2, 3), 0), ((2, 3, 9, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int, boundary: str) -> None:
    draw = Draw(shape)
    row_shape = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
    given = {"inputs": draw.numbers(), "dones": draw.flags("random"), "seed_values": draw.numbers(row_shape)}
    check_as_given(on_kernel_device(given) | {"boundary": boundary, "time_dim": dim})


@pytest.mark.skipif(not INTERPRETED, reason="a GPU gets these plans from problems of their size")
@both_conventions
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(strategy: str, boundary: str) -> None:
    arguments = drawn((2, 43), "random", boundary)
    # Flags at the last step of a tile, and at the first one of another.
    arguments["dones"][0, 15] = arguments["dones"][1, 32] = True
    arguments["inputs"][0, 3] = math.nan
    with forced_plan(strategy):
        check(arguments)


@both_conventions
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], boundary: str) -> None:
    x = torch.ones(shape, device=DEVICE)
    for dim in (0, 1):
        seeds = torch.ones(shape[1 - dim], device=DEVICE)
        prefix_sums = compute_episodic_prefix_sum(x, x, seeds, boundary, time_dim=dim)
        assert prefix_sums.shape == shape
        assert prefix_sums.device == x.device


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@both_conventions
@pytest.mark.parametrize("boundaries", ["none", "random"])
@pytest.mark.parametrize(
    ("rows", "steps"),
    [(64, 512), (64, 2048), (3, 20001), (8, 131072)],
)
def test_long_rows(rows: int, steps: int, boundaries: str, boundary: str) -> None:
    check_as_given(on_kernel_device(drawn((rows, steps), boundaries, boundary)))


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@both_conventions
def test_long_counts_are_exact(boundary: str) -> None:
    ones = torch.ones(2, 131072, device=DEVICE)
    counts = compute_episodic_prefix_sum(ones, torch.zeros_like(ones), ones[:, 0], boundary)
    assert torch.equal(counts, torch.arange(2.0, 131074.0, device=DEVICE).expand_as(counts))


# (rows, steps): one row shares groups with the next where time is contiguous, several lie side by side.
PACKED = [(1, 61), (3, 29)] if INTERPRETED else [(1, 61), (1, 4099), (1, 40000), (3, 4099), (40, 300)]


@pytest.mark.parametrize("seeded", [False, True], ids=["from nothing", "seeded"])
@pytest.mark.parametrize("shape", PACKED, ids=str)
def test_packed_sequences(shape: tuple[int, int], seeded: bool) -> None:
    arguments = drawn(shape, "random", "ends_at", seeded=seeded)
    assert_packs(compute_episodic_prefix_sum, reference.compute_episodic_prefix_sum, arguments)
