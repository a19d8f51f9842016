"""The public call: signature, shapes, dtypes, layouts, errors and warnings."""

from __future__ import annotations

import inspect
import math
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from rl_triton_retrace import compute_retrace, reference
from torch import Tensor


def good_call() -> dict[str, Any]:
    """3 environments, 5 steps, 4 actions."""
    generator = torch.Generator().manual_seed(0)
    return {
        "action_probs_target": torch.randn(3, 5, 4, generator=generator).softmax(-1),
        "action_probs_behavior": torch.rand(3, 5, generator=generator) * 0.5 + 0.5,
        "q_values": torch.randn(3, 5, generator=generator),
        "next_q_values_all": torch.randn(3, 5, 4, generator=generator),
        "actions": torch.randint(4, (3, 5), generator=generator),
        "rewards": torch.randn(3, 5, generator=generator),
        "terminateds": torch.rand(3, 5, generator=generator) < 0.2,
        "truncateds": torch.rand(3, 5, generator=generator) < 0.2,
        "gamma": 0.9,
    }


def call(**changes: Any) -> tuple[Tensor, Tensor]:
    return compute_retrace(**(good_call() | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_retrace).parameters
    names = ["action_probs_target", "action_probs_behavior", "q_values", "next_q_values_all", "actions", "rewards"]
    names += ["terminateds", "truncateds", "gamma", "lambda_", "c_bar", "rho_bar"]
    keywords = ["next_action_probs_target", "values", "boundary", "next_start", "cu_seqlens", "time_dim", "out"]
    assert list(parameters) == names + keywords
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "lambda_": 1.0,
        "c_bar": 1.0,
        "rho_bar": 1.0,
        "next_action_probs_target": None,
        "values": None,
        "boundary": "ends_at",
        "next_start": None,
        "cu_seqlens": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == keywords


X, XA = torch.zeros(3, 5), torch.zeros(3, 5, 4)
BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [[1.0]]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"rewards": None}, TypeError, r"rewards: expected a torch.Tensor, got None"),
    ({"action_probs_target": None}, TypeError, r"action_probs_target: expected a torch.Tensor, got None"),
    ({"next_q_values_all": 0.0}, TypeError, r"next_q_values_all: expected a torch.Tensor, got float"),
    ({"truncateds": False}, TypeError, r"truncateds: expected a torch.Tensor, got bool"),
    ({"next_action_probs_target": 0.5}, TypeError, r"next_action_probs_target: expected a torch.Tensor, got float"),
    ({"actions": X}, TypeError, r"actions: expected an integer dtype, got torch.float32"),
    ({"actions": X.half()}, TypeError, r"actions: expected an integer dtype, got torch.float16"),
    ({"actions": X.to(torch.complex64)}, TypeError, r"actions: expected an integer dtype, got torch.complex64"),
    ({"actions": X.long().to_sparse()}, TypeError, r"actions: expected a dense tensor"),
    ({"q_values": X.to(torch.complex64)}, TypeError, r"q_values: expected float16.*complex64"),
    ({"action_probs_target": XA.to(torch.float8_e5m2)}, TypeError, r"action_probs_target: expected .*float8"),
    ({"actions": X.long().t()}, ValueError, r"actions: expected shape \(3, 5\) like rewards, got \(5, 3\)"),
    ({"q_values": XA}, ValueError, r"q_values: expected shape \(3, 5\) like rewards, got \(3, 5, 4\)"),
    ({"values": X[0]}, ValueError, r"values: expected shape \(3, 5\).*expand_as"),
    (
        {"action_probs_target": X},
        ValueError,
        r"action_probs_target: expected shape \(3, 5, A\), like rewards with a last axis of A actions, got \(3, 5\)",
    ),
    ({"action_probs_target": torch.zeros(5, 3, 4)}, ValueError, r"action_probs_target: expected shape \(3, 5, A\)"),
    (
        {"next_q_values_all": XA[..., :3]},
        ValueError,
        r"next_q_values_all: expected a last axis of 4 actions like action_probs_target, got 3 in \(3, 5, 3\)",
    ),
    ({"next_q_values_all": XA[:, :4]}, ValueError, r"next_q_values_all: expected shape \(3, 5, A\)"),
    (
        {"action_probs_target": XA[..., :0], "next_q_values_all": XA[..., :0]},
        ValueError,
        r"action_probs_target: expected at least one action in the last axis, got shape \(3, 5, 0\)",
    ),
    (
        {"next_action_probs_target": XA[:, :4]},
        ValueError,
        r"next_action_probs_target: expected shape \(3, 5, A\), like rewards",
    ),
    (
        {"next_action_probs_target": torch.zeros(5, 4)},
        ValueError,
        r"next_action_probs_target: expected shape \(3, A\), like rewards .* without its time axis .* got \(5, 4\)",
    ),
    ({"next_action_probs_target": torch.zeros(3, 3)}, ValueError, r"next_action_probs_target: .* 4 actions"),
    ({"next_action_probs_target": torch.zeros(4)}, ValueError, r"next_action_probs_target: expected shape"),
    ({"next_action_probs_target": torch.zeros(())}, ValueError, r"next_action_probs_target: expected shape"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"gamma": None}, TypeError, r"gamma: expected a float or a torch.Tensor, got None"),
    ({"lambda_": math.nan}, ValueError, r"lambda_: expected a number in \[0, 1\], got nan"),
    ({"lambda_": torch.tensor(0.9)}, ValueError, r"lambda_: expected shape \(3, 5\).*one number for all steps"),
    ({"c_bar": 0.0}, ValueError, r"c_bar: expected a positive number, got 0.0"),
    ({"rho_bar": -1}, ValueError, r"rho_bar: expected a positive number, got -1"),
    ({"rho_bar": X}, TypeError, r"rho_bar: expected a float, got Tensor"),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis of rewards \(3, 5\)"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"actions": X.long().to("meta")}, RuntimeError, r"actions: expected a tensor on cpu like rewards.*meta"),
    ({"next_q_values_all": XA.to("meta")}, RuntimeError, r"next_q_values_all: expected a tensor on cpu.*meta"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


def test_one_trajectory_is_told_its_time_axis() -> None:
    given = {name: x[0] if isinstance(x, Tensor) else x for name, x in good_call().items()}
    with pytest.raises(ValueError, match=r"time_dim: rewards has one dimension.*time_dim=0"):
        compute_retrace(**given)
    outputs = compute_retrace(**given, time_dim=0)
    for output, batch in zip(outputs, call(), strict=True):
        assert output.shape == (5,)
        torch.testing.assert_close(output, batch[0])
    last_policy = torch.tensor([0.25, 0.25, 0.5, 0.0])
    outputs = compute_retrace(**given, time_dim=0, next_action_probs_target=last_policy)
    expected = reference.compute_retrace(**given, time_dim=0, next_action_probs_target=last_policy)
    torch.testing.assert_close(outputs[0], expected[0].float())


def test_no_clip_is_none_or_infinite() -> None:
    behavior = torch.full((3, 5), 0.01)
    without = call(action_probs_behavior=behavior, c_bar=None, rho_bar=None)
    for output, other in zip(
        without, call(action_probs_behavior=behavior, c_bar=math.inf, rho_bar=math.inf), strict=True
    ):
        assert torch.equal(output, other)
    assert not torch.equal(without[0], call(action_probs_behavior=behavior)[0])
    for output, other in zip(without, call(action_probs_behavior=behavior, c_bar=1e300, rho_bar=1e300), strict=True):
        assert torch.equal(output, other)


FLOATS = ["action_probs_target", "action_probs_behavior", "q_values", "next_q_values_all", "rewards", "values"]
PROMOTIONS: list[tuple[dict[str, torch.dtype], torch.dtype]] = [
    ({}, torch.float16),
    ({"actions": torch.int64, "terminateds": torch.float64, "truncateds": torch.float64}, torch.float16),
    ({"rewards": torch.int64}, torch.float32),
    ({"action_probs_target": torch.bfloat16}, torch.float32),
    ({"next_q_values_all": torch.float32}, torch.float32),
    ({"next_action_probs_target": torch.float64}, torch.float64),
    ({"values": torch.float64}, torch.float64),
    ({"gamma": torch.float32}, torch.float32),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    given = good_call() | {"values": torch.ones(3, 5)}
    if "next_action_probs_target" in dtypes:
        given["next_action_probs_target"] = torch.ones(3, 4)
    if "gamma" in dtypes:
        given["gamma"] = torch.ones(3, 5)
    for name in given:
        if isinstance(given[name], Tensor) and (name in FLOATS or name in dtypes):
            given[name] = given[name].to(dtypes.get(name, torch.float16))
    for output in compute_retrace(**given):
        assert output.dtype == expected


INTEGERS = [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS += [torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_actions_of_any_integer_dtype(dtype: torch.dtype) -> None:
    actions = good_call()["actions"].clamp(max=1)
    for output, other in zip(call(actions=actions.to(dtype)), call(actions=actions), strict=True):
        assert output.dtype == torch.float32
        assert torch.equal(output, other)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (4, 5, 3)
    given: dict[str, Any] = {name: torch.randn(shape, generator=generator) for name in ("rewards", "q_values")}
    given["action_probs_target"] = torch.randn(*shape, 6, generator=generator).softmax(-1)
    given["next_q_values_all"] = torch.randn(*shape, 6, generator=generator)
    given["action_probs_behavior"] = torch.rand(shape, generator=generator) * 0.5 + 0.5
    given["actions"] = torch.randint(6, shape, generator=generator)
    given |= {"terminateds": torch.rand(shape, generator=generator) < 0.2, "truncateds": None, "gamma": 0.9}
    row_shape = shape[: dim % 3] + shape[dim % 3 + 1 :]
    for of in (shape, row_shape):
        given["next_action_probs_target"] = torch.randn(*of, 6, generator=generator).softmax(-1)
        expected = reference.compute_retrace(**given, time_dim=dim)
        for output, other in zip(compute_retrace(**given, time_dim=dim), expected, strict=True):
            torch.testing.assert_close(output, other.float(), rtol=1e-5, atol=1e-5)


def test_outputs_are_laid_out_like_rewards() -> None:
    transposed = torch.ones(5, 3).t()
    for output in call(rewards=transposed):
        assert output.stride() == transposed.stride()
    for rewards in (torch.ones(3, 1).expand(3, 5), torch.ones(3, 10)[:, ::2]):
        for output in call(rewards=rewards):
            assert output.is_contiguous()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int]) -> None:
    x, of_actions = torch.ones(shape), torch.ones(*shape, 4)
    for dim in (0, 1):
        outputs = compute_retrace(of_actions, x, x, of_actions, x.long(), x, x, None, 0.9, time_dim=dim)
        assert [output.shape for output in outputs] == [shape, shape]


def test_inputs_are_neither_changed_nor_returned() -> None:
    given = good_call() | {"values": torch.rand(3, 5), "next_action_probs_target": torch.rand(3, 5, 4)}
    before = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
    for width in (5, 1):
        parts = {name: x[:, :width] if isinstance(x, Tensor) else x for name, x in given.items()}
        for output in compute_retrace(**parts):
            output.fill_(7.0)
        assert all(torch.equal(given[name], x) for name, x in before.items())


def test_truncations_never_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(truncateds=torch.ones(3, 5))
        call(truncateds=None)


def test_no_gradient_is_recorded() -> None:
    given = {name: x.requires_grad_() if name in FLOATS else x for name, x in good_call().items()}
    assert not any(output.requires_grad for output in compute_retrace(**given))


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_retrace.api.CORRECTNESS_WARNINGS", True)
    nan, given = math.nan, good_call()
    for name in ("rewards", "q_values", "next_q_values_all", "values"):
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: torch.full_like(given.get(name, X), nan)})
    for action in (-1, 4):
        with pytest.warns(UserWarning, match=r"actions: holds an action outside \[0, 4\)"):
            call(actions=torch.full((3, 5), action))
    for probability in (-0.5, 0.0, 1.5):
        with pytest.warns(UserWarning, match=r"action_probs_behavior: holds a number outside \(0, 1\]"):
            call(action_probs_behavior=torch.full((3, 5), probability))
    for name in ("action_probs_target", "next_action_probs_target"):
        for probability in (-0.5, 1.5):
            with pytest.warns(UserWarning, match=rf"^{name}: holds a number outside \[0, 1\]"):
                call(**{name: torch.full((3, 5, 4), probability)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
        call(action_probs_target=torch.eye(4)[given["actions"]])
        # There are no numbers to look at.
        compute_retrace(**{name: x.to("meta") if isinstance(x, Tensor) else x for name, x in given.items()})
        torch.func.vmap(lambda r: compute_retrace(**(given | {"rewards": r})))(torch.ones(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = (
        "import torch; from rl_triton_retrace import compute_retrace; x = torch.ones(1, 1); p = torch.ones(1, 1, 1); "
        "compute_retrace(p, x, x, p, x.long(), x, x, None, 0.9)"
    )
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: actions: holds an action outside") == warnings_shown
