"""compute_gae by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_triton_core.testing.cases import Case, load_cases
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_gae import compute_gae, reference
from torch import Tensor

pytestmark = kernel_marks()
DEVICE = kernel_device()
CASES = load_cases(Path(__file__).parent / "cases" / "compute_gae.json")
SHAPES = [(1, 1), (3, 2), (2, 7), (2, 9), (8, 9), (3, 16), (2, 33), (1, 64)]
if not INTERPRETED:
    SHAPES = [(1, 1), (3, 2), (4096, 1), (127, 7), (4096, 9), (4096, 31), (3, 63), (127, 64), (4096, 65), (4096, 100)]
    SHAPES += [(127, 131), (4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
BOUNDARIES = ["none", "all", "first", "last", "random", "truncated"]
OPTIONS = ["nothing", "last_value", "bootstrap_values", "next_values", "per-step", "truncateds"]


def drawn(shape: tuple[int, int], boundaries: str, option: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments on the CPU, environment-major."""
    generator = torch.Generator().manual_seed(shape[0] * 7919 + shape[1])

    def numbers(of: tuple[int, ...] = shape) -> Tensor:
        return torch.randn(of, generator=generator, dtype=torch.float64).to(dtype)

    def flags(kind: str) -> Tensor:
        set_ = torch.zeros(shape, dtype=torch.bool)
        if kind == "all":
            set_[:] = True
        elif kind in ("first", "last"):
            set_[:, 0 if kind == "first" else -1] = True
        elif kind == "random":
            set_ = torch.rand(shape, generator=generator) < 0.1
        return set_

    arguments: dict[str, Any] = {"rewards": numbers(), "values": numbers(), "gamma": 0.99, "lambda_": 0.95}
    arguments["terminateds"] = flags("none" if boundaries == "truncated" else boundaries)
    if option == "last_value":
        arguments["last_value"] = numbers(shape[:1])
    if option in ("bootstrap_values", "next_values"):
        arguments |= {option: numbers(), "truncateds": flags("random")}
    if option == "per-step":
        arguments |= {"gamma": numbers().sigmoid(), "lambda_": numbers().sigmoid()}
    if option == "truncateds":
        arguments |= {"truncateds": flags("random"), "last_value": numbers(shape[:1])}
    return arguments


def time_major(x: Any) -> Any:
    return x.t().contiguous() if isinstance(x, Tensor) and x.dim() == 2 else x


def on_device(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Both layouts obey the rule, and the inputs are as they were."""
    expected = reference.compute_gae(**arguments)
    loop = reference.compute_gae(**arguments, dtype=torch.float32)
    for layout, dim in ((lambda x: x, 1), (time_major, 0)):
        given = on_device({name: layout(x) for name, x in arguments.items()})
        before = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
        actual = compute_gae(**given, time_dim=dim)
        assert actual.stride() == given["rewards"].stride()
        assert_within_rule(actual if dim else actual.t(), expected, loop, dtype)
        for name, x in before.items():
            torch.testing.assert_close(given[name], x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_worked_values(case: Case, dtype: torch.dtype) -> None:
    given = {name: x if x.dtype == torch.bool else x.to(dtype) for name, x in case.inputs.items()}
    actual = compute_gae(**on_device(given), **case.params)
    torch.testing.assert_close(
        actual.cpu(), case.expected["advantages"].to(dtype), rtol=2e-6, atol=1e-6, equal_nan=True
    )


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_options(shape: tuple[int, int], option: str) -> None:
    check(drawn(shape, "random", option))


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
    given = on_device(arguments)
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    stepped.copy_(given["rewards"])
    offset = torch.full((rows * steps + 1,), math.nan, device=DEVICE)[1:].view(rows, steps)
    offset.copy_(given["values"])
    flags = time_major(given["terminateds"]).t()
    actual = compute_gae(stepped, offset, flags, last_value=given["last_value"])
    assert_within_rule(actual, expected, loop, torch.float32)
    agents = torch.stack([given["values"], given["values"]], -1)
    shared = {name: given[name].unsqueeze(-1).expand_as(agents) for name in ("rewards", "terminateds")}
    last_value = given["last_value"].unsqueeze(-1).expand(-1, 2)
    together = compute_gae(shared["rewards"], agents, shared["terminateds"], last_value=last_value)
    assert together.is_contiguous()
    for agent in range(2):
        assert_within_rule(together[..., agent], expected, loop, torch.float32)


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("decay", [0.94, 0.99, 0.999, 0.9999, 1.0])
@pytest.mark.parametrize(("rows", "steps"), [(64, 512), (64, 2048), (3, 20001)])
def test_long_rows_and_decays_near_one(rows: int, steps: int, decay: float) -> None:
    arguments = drawn((rows, steps), "none", "last_value") | {"gamma": decay, "lambda_": 1.0}
    expected = reference.compute_gae(**arguments)
    loop = reference.compute_gae(**arguments, dtype=torch.float32)
    assert_within_rule(compute_gae(**on_device(arguments)), expected, loop, torch.float32)
    per_step = {name: torch.full((rows, steps), number) for name, number in (("gamma", decay), ("lambda_", 1.0))}
    expected = reference.compute_gae(**(arguments | per_step))
    loop = reference.compute_gae(**(arguments | per_step), dtype=torch.float32)
    assert_within_rule(compute_gae(**on_device(arguments | per_step)), expected, loop, torch.float32)


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize(("rows", "steps"), [(8, 131072), (1, 262144)])
def test_few_long_rows(rows: int, steps: int) -> None:
    arguments = drawn((rows, steps), "none", "last_value") | {"gamma": 0.999, "lambda_": 1.0}
    expected = reference.compute_gae(**arguments)
    loop = reference.compute_gae(**arguments, dtype=torch.float32)
    assert_within_rule(compute_gae(**on_device(arguments)), expected, loop, torch.float32)


@pytest.mark.skipif(INTERPRETED, reason="both paths")
def test_the_cpu_says_the_same() -> None:
    arguments = drawn((127, 100), "random", "bootstrap_values")
    torch.testing.assert_close(
        compute_gae(**on_device(arguments)).cpu(), compute_gae(**arguments), rtol=2e-5, atol=2e-6
    )
