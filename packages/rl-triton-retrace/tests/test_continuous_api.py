"""The public call for continuous actions: signature, shapes, dtypes, layouts, errors and warnings."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import pytest
import torch
from rl_triton_retrace import compute_retrace_continuous, reference
from torch import Tensor

REAL = ("log_pi_target", "log_pi_behavior", "q_values", "next_values", "rewards")
TRACES = ("retrace", "importance", "harutyunyan", "tree_backup")


def good_call() -> dict[str, Any]:
    """Arguments of 3 environments and 5 steps."""
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(3, 5, generator=generator) for name in REAL}
    flags = {name: torch.rand(3, 5, generator=generator) < 0.2 for name in ("terminateds", "truncateds")}
    return numbers | flags | {"gamma": 0.9}


def call(**changes: Any) -> tuple[Tensor, Tensor]:
    return compute_retrace_continuous(**(good_call() | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_retrace_continuous).parameters
    names = [*REAL, "terminateds", "truncateds", "gamma", "lambda_", "c_bar", "rho_bar"]
    keywords = ["trace", "values", "cu_seqlens", "time_dim", "out"]
    assert list(parameters) == names + keywords
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "lambda_": 1.0,
        "c_bar": 1.0,
        "rho_bar": 1.0,
        "trace": "retrace",
        "values": None,
        "cu_seqlens": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == keywords


X = torch.zeros(3, 5)
BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [[1.0]]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"q_values": None}, TypeError, r"q_values: expected a torch.Tensor, got None"),
    ({"next_values": 0.0}, TypeError, r"next_values: expected a torch.Tensor, got float"),
    ({"next_values": None}, TypeError, r"next_values: expected a torch.Tensor, got None"),
    ({"truncateds": False}, TypeError, r"truncateds: expected a torch.Tensor, got bool"),
    ({"q_values": X.to(torch.complex64)}, TypeError, r"q_values: expected float16.*complex64"),
    ({"log_pi_target": X.to(torch.float8_e5m2)}, TypeError, r"log_pi_target: expected .*float8"),
    ({"values": X[0]}, ValueError, r"values: expected shape \(3, 5\).*expand_as"),
    ({"next_values": X.t()}, ValueError, r"next_values: expected shape \(3, 5\) like rewards, got \(5, 3\)"),
    ({"log_pi_target": torch.zeros(3, 5, 2)}, ValueError, r"log_pi_target: expected shape \(3, 5\)"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"lambda_": -0.5}, ValueError, r"lambda_: expected a number in \[0, 1\], got -0.5"),
    ({"gamma": None}, TypeError, r"gamma: expected a float or a torch.Tensor, got None"),
    ({"c_bar": 0.0}, ValueError, r"c_bar: expected a positive number, got 0.0"),
    ({"rho_bar": "1"}, TypeError, r"rho_bar: expected a float, got str"),
    ({"trace": "watkins"}, ValueError, r"trace: expected 'retrace', .* or 'tree_backup', got 'watkins'"),
    ({"trace": None}, TypeError, r"trace: expected 'retrace', .* or 'tree_backup', got NoneType"),
    ({"trace": ["retrace"]}, TypeError, r"trace: expected .*, got list"),
    ({"log_pi_behavior": None}, TypeError, r"log_pi_behavior: expected a torch.Tensor, got None"),
    ({"log_pi_behavior": None, "trace": "importance"}, TypeError, r"log_pi_behavior: expected a torch.Tensor"),
    ({"log_pi_target": None}, TypeError, r"log_pi_target: expected a torch.Tensor.*got None"),
    (
        {"log_pi_target": None, "log_pi_behavior": None, "trace": "tree_backup"},
        TypeError,
        r"log_pi_target: expected a torch.Tensor, got None",
    ),
    (
        {"log_pi_target": None, "trace": "harutyunyan"},
        TypeError,
        r"log_pi_target: expected a torch.Tensor, since log_pi_behavior is given, got None",
    ),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis of rewards"),
    ({"next_values": X.to("meta")}, RuntimeError, r"next_values: expected a tensor on cpu.*meta"),
    ({"out": X}, TypeError, r"out: expected a tuple of 2 tensors, got Tensor"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match=r"rewards has one dimension.*time_dim=0"):
        compute_retrace_continuous(x, x, x, x, x, x, None, 0.9)
    outputs = compute_retrace_continuous(x, x, x, x, x, x, None, 0.9, time_dim=0)
    assert [output.shape for output in outputs] == [(4,), (4,)]


@pytest.mark.parametrize("trace", TRACES)
def test_positional_arguments_are_those_of_the_oracle(trace: str) -> None:
    positional = (*good_call().values(), 0.8, 1.5, 0.7)
    expected = reference.compute_retrace_continuous(*positional, trace=trace)
    for x, y in zip(compute_retrace_continuous(*positional, trace=trace), expected, strict=True):
        torch.testing.assert_close(x, y.float())


def test_what_the_bounds_do() -> None:
    def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(call(**first), call(**second), strict=True))

    assert equal({"c_bar": None}, {"c_bar": math.inf})
    assert equal({"c_bar": None}, {"trace": "importance"})
    assert not equal({"c_bar": None}, {})
    assert not equal({"rho_bar": None}, {})
    for trace in TRACES[1:]:
        assert equal({"trace": trace, "c_bar": 0.5}, {"trace": trace})


def test_a_trace_that_reads_no_behavior_has_the_same_targets_without() -> None:
    for trace in ("harutyunyan", "tree_backup"):
        weighed, plain = (call(trace=trace, **more) for more in ({}, {"log_pi_behavior": None}))
        assert torch.equal(weighed[0], plain[0])
        rho = (good_call()["log_pi_target"] - good_call()["log_pi_behavior"]).exp().clamp(max=1.0)
        torch.testing.assert_close(weighed[1], rho * plain[1])
    unknown = call(trace="harutyunyan", log_pi_target=None, log_pi_behavior=None)
    for x, y in zip(unknown, call(trace="harutyunyan", log_pi_behavior=None), strict=True):
        assert torch.equal(x, y)


PROMOTIONS: list[tuple[dict[str, torch.dtype], torch.dtype]] = [
    ({}, torch.float16),
    (dict.fromkeys(REAL, torch.bfloat16), torch.bfloat16),
    ({"log_pi_target": torch.bfloat16}, torch.float32),
    ({"rewards": torch.int64}, torch.float32),
    ({"next_values": torch.float64}, torch.float64),
    ({"values": torch.float64}, torch.float64),
    ({"terminateds": torch.float64}, torch.float16),
    ({"gamma": torch.float32}, torch.float32),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    dtypes = dict.fromkeys(REAL, torch.float16) | dtypes
    given = {name: torch.ones(3, 5).to(dtype) for name, dtype in dtypes.items()}
    assert [output.dtype for output in call(**given)] == [expected] * 2


@pytest.mark.parametrize("trace", TRACES)
def test_outputs_are_laid_out_like_rewards(trace: str) -> None:
    transposed = torch.ones(5, 3).t()
    for rewards, strides in (
        (transposed, transposed.stride()),
        (torch.ones(3, 1).expand(3, 5), (5, 1)),
        (torch.ones(3, 10)[:, ::2], (5, 1)),
    ):
        for more in ({}, {"values": X}):
            for output in call(rewards=rewards, trace=trace, **more):
                assert output.stride() == strides


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int, trace: str) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, Any] = {name: torch.randn(shape, generator=generator) for name in REAL}
    given |= {name: torch.rand(shape, generator=generator) < 0.2 for name in ("terminateds", "truncateds")}
    given |= {"gamma": 0.9, "trace": trace, "time_dim": dim}
    expected = reference.compute_retrace_continuous(**given)
    for x, y in zip(compute_retrace_continuous(**given), expected, strict=True):
        torch.testing.assert_close(x, y.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int], trace: str) -> None:
    x = torch.ones(shape)
    for function in (compute_retrace_continuous, reference.compute_retrace_continuous):
        for dim in (0, 1):
            outputs = function(x, x, x, x, x, x, x, 0.9, trace=trace, time_dim=dim)
            assert [output.shape for output in outputs] == [shape] * 2


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("more", [{}, {"values": torch.zeros(3, 5)}, {"gamma": torch.ones(3, 5)}])
def test_inputs_are_neither_changed_nor_returned(more: dict[str, Any], trace: str) -> None:
    given = good_call() | more
    if trace in ("harutyunyan", "tree_backup"):
        given["log_pi_behavior"] = None
    for width in (5, 1):
        parts = {name: x[:, :width] if isinstance(x, Tensor) else x for name, x in given.items()}
        before = {name: x.clone() for name, x in parts.items() if isinstance(x, Tensor)}
        targets, advantages = compute_retrace_continuous(**parts, trace=trace)
        kept = advantages.clone()
        targets.fill_(7.0)
        assert torch.equal(advantages, kept), "the outputs share memory"
        advantages.fill_(7.0)
        assert all(torch.equal(parts[name], x) for name, x in before.items())


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_retrace.continuous.CORRECTNESS_WARNINGS", True)
    for name in (*REAL, "values", "gamma", "lambda_"):
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: torch.full((3, 5), math.nan)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
        # A density may be above 1, and a probability 0.
        call(log_pi_target=torch.ones(3, 5), log_pi_behavior=torch.full((3, 5), 2.0), trace="tree_backup")
        call(log_pi_target=torch.full((3, 5), -math.inf))
        call(log_pi_target=None, log_pi_behavior=None, trace="harutyunyan")
        call(**{name: x.to("meta") for name, x in good_call().items() if isinstance(x, Tensor)})
