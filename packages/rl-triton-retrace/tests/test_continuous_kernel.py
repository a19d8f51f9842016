"""compute_retrace_continuous by its kernels against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import (
    BOUNDARIES,
    Draw,
    assert_obeys_rule,
    assert_obeys_rule_as_given,
    assert_packs,
    on_kernel_device,
    time_first,
)
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_retrace import compute_retrace_continuous, reference

pytestmark = kernel_marks()
DEVICE = kernel_device()
SHAPES = [(8, 9), (3, 16), (1, 1), (3, 2)]
if not INTERPRETED:
    SHAPES = [(4096, 9), (127, 64), (1, 1), (3, 2), (4096, 1), (4096, 31), (3, 63), (4096, 100), (127, 131)]
    SHAPES += [(4096, 128), (128, 512), (127, 1000), (8, 1001), (3, 4097), (600, 4100), (1, 9000)]
TRACES = ("retrace", "importance", "harutyunyan", "tree_backup")
OPTIONS = ["nothing", "truncateds", "values", "per-step", "no clips", "no behavior"]


def drawn(
    shape: tuple[int, ...], boundaries: str, option: str, trace: str = "retrace", dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Arguments on the CPU, environment-major; rewards first, whose layout the outputs have."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "q_values", "next_values")}
    # About 1, so that the products of many stay within range.
    arguments |= {name: 0.1 * draw.numbers() for name in ("log_pi_target", "log_pi_behavior")}
    arguments |= {"terminateds": draw.flags(boundaries), "gamma": 0.97, "lambda_": 0.95, "trace": trace}
    arguments["truncateds"] = None if option == "nothing" else draw.flags("random")
    if option == "values":
        arguments["values"] = draw.numbers()
    if option == "per-step":
        arguments |= {"gamma": draw.numbers().sigmoid(), "lambda_": draw.numbers().sigmoid()}
    if option == "no clips":
        arguments |= {"c_bar": None, "rho_bar": math.inf}
    if option == "no behavior":
        arguments["log_pi_behavior"] = None
        if trace == "harutyunyan":
            arguments["log_pi_target"] = None
    return arguments


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    assert_obeys_rule(compute_retrace_continuous, reference.compute_retrace_continuous, arguments, dtype)


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES, ids=str)
def test_options(shape: tuple[int, int], option: str, trace: str) -> None:
    if option == "no behavior" and trace in ("retrace", "importance"):
        pytest.skip("these read the behavior")
    check(drawn(shape, "random", option, trace))


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_shapes(shape: tuple[int, int], trace: str) -> None:
    check(drawn(shape, "random", "truncateds", trace))


@pytest.mark.parametrize("boundaries", BOUNDARIES)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES[::3], ids=str)
def test_boundaries(shape: tuple[int, int], boundaries: str) -> None:
    for trace in ("retrace", "harutyunyan"):
        check(drawn(shape, boundaries, "nothing", trace))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES[:4], ids=str)
def test_dtypes(shape: tuple[int, int], trace: str, dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(drawn(shape, "random", "values", trace, dtype), dtype)


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("shape", SHAPES[:1] if INTERPRETED else SHAPES, ids=str)
def test_what_is_not_finite_stays_in_its_episode(shape: tuple[int, int], trace: str) -> None:
    arguments = drawn(shape, "random", "truncateds", trace)
    generator = torch.Generator().manual_seed(1)
    for name in ("rewards", "q_values", "next_values", "log_pi_target", "log_pi_behavior"):
        arguments[name][torch.rand(shape, generator=generator) < 0.04] = math.nan
    check(arguments)


@pytest.mark.parametrize("trace", TRACES)
def test_a_ratio_behind_a_boundary_does_not_matter(trace: str) -> None:
    """Steps whose ratio overflows, is 0 or NaN, each behind one that ended; the last column of theirs ends too."""
    rows, steps = SHAPES[0]
    arguments = drawn((rows, steps), "none", "truncateds", trace) | {"rho_bar": 1.0}
    arguments["truncateds"][:, 0::2] = True
    arguments["terminateds"][:, 1::2] = True
    for step, log_ratio in zip((1, 2, 3, 4), (1000.0, -math.inf, math.nan, math.inf), strict=True):
        arguments["log_pi_target"][:, step] = log_ratio
    expected = reference.compute_retrace_continuous(**arguments)
    assert expected[0].isfinite().all()
    assert expected[1].isnan().sum() == rows
    check(arguments)


def test_what_a_termination_hides_is_not_read() -> None:
    rows, steps = SHAPES[0]
    for trace in TRACES:
        arguments = drawn((rows, steps), "none", "per-step", trace)
        arguments["terminateds"][:, [3, -1]] = True
        for name in ("next_values", "gamma", "lambda_"):
            arguments[name][:, [3, -1]] = math.nan
        assert all(x.isfinite().all() for x in reference.compute_retrace_continuous(**arguments))
        check(arguments)


def test_views_are_read_in_place() -> None:
    rows, steps = SHAPES[0]
    arguments = on_kernel_device(drawn((rows, steps), "random", "values"))
    stepped = torch.full((rows, 2 * steps + 1), math.nan, device=DEVICE)[:, 1::2]
    stepped.copy_(arguments["rewards"])
    views = {"rewards": stepped, "q_values": arguments["q_values"][:1].expand(rows, steps)}
    views |= {name: time_first(arguments[name]).t() for name in ("log_pi_target", "next_values", "terminateds")}
    oracle = reference.compute_retrace_continuous
    outputs = assert_obeys_rule_as_given(compute_retrace_continuous, oracle, arguments | views)
    assert all(output.is_contiguous() for output in outputs)


@pytest.mark.parametrize(("shape", "dim"), [((2, 8, 3), 1), ((2, 3, 8), 2), ((9, 2, 3), 0), ((2, 3, 8, 2), -2)])
def test_batch_axes_before_and_after_time(shape: tuple[int, ...], dim: int) -> None:
    arguments = on_kernel_device(drawn(shape, "none", "truncateds")) | {"time_dim": dim}
    assert_obeys_rule_as_given(compute_retrace_continuous, reference.compute_retrace_continuous, arguments)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_empty(shape: tuple[int, int], dim: int) -> None:
    x = torch.ones(shape, device=DEVICE)
    for trace in TRACES:
        outputs = compute_retrace_continuous(x, x, x, x, x, x, None, 0.9, trace=trace, time_dim=dim)
        assert [(output.shape, output.device) for output in outputs] == [(x.shape, x.device)] * 2


@pytest.mark.skipif(INTERPRETED, reason="long rows")
@pytest.mark.parametrize("gamma", [0.99, 1.0])
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize(("rows", "steps"), [(64, 2048), (3, 9001)])
def test_long_rows(rows: int, steps: int, trace: str, gamma: float) -> None:
    arguments = drawn((rows, steps), "none", "nothing", trace) | {"gamma": gamma, "lambda_": 1.0}
    # Products of thousands of traces stay within range where these are almost 1.
    for name in ("log_pi_target", "log_pi_behavior"):
        arguments[name] *= 0.02
    check(arguments)


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("shape", [(1, 61), (3, 29)] if INTERPRETED else [(1, 4099), (3, 4099)], ids=str)
def test_packed_sequences(shape: tuple[int, int], trace: str) -> None:
    arguments = drawn(shape, "random", "truncateds", trace)
    assert_packs(compute_retrace_continuous, reference.compute_retrace_continuous, arguments)
