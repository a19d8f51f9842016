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
from rl_triton_vtrace import compute_vtrace, reference
from torch import Tensor

REAL = ("log_pi_target", "log_pi_behavior", "values", "rewards")


def call(**changes: Any) -> tuple[Tensor, Tensor]:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {name: torch.zeros(3, 5) for name in (*REAL, "terminateds")}
    return compute_vtrace(**(good | {"rewards": torch.ones(3, 5)} | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_vtrace).parameters
    names = [*REAL, "terminateds", "truncateds", "gamma", "rho_bar", "c_bar", "bootstrap_values", "last_value"]
    keywords = [
        "next_values",
        "lambda_",
        "pg_rho_bar",
        "leak",
        "mask",
        "boundary",
        "next_start",
        "cu_seqlens",
        "time_dim",
        "out",
    ]
    assert list(parameters) == names + keywords
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "truncateds": None,
        "gamma": 0.99,
        "rho_bar": 1.0,
        "c_bar": 1.0,
        "bootstrap_values": None,
        "last_value": None,
        "next_values": None,
        "lambda_": 1.0,
        "pg_rho_bar": None,
        "leak": 0.0,
        "mask": None,
        "boundary": "ends_at",
        "next_start": None,
        "cu_seqlens": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == keywords


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [[1.0]]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"log_pi_target": None}, TypeError, r"log_pi_target: expected a torch.Tensor, got None"),
    ({"log_pi_behavior": -1.0}, TypeError, r"log_pi_behavior: expected a torch.Tensor, got float"),
    ({"values": None}, TypeError, r"values: expected a torch.Tensor, got None"),
    ({"terminateds": 0}, TypeError, r"terminateds: expected a torch.Tensor, got int"),
    ({"rewards": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"rewards: expected float16.*complex64"),
    ({"terminateds": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"terminateds: expected flags"),
    ({"log_pi_target": torch.zeros(3, 5).to(torch.float8_e4m3fn)}, TypeError, r"log_pi_target: expected .*float8"),
    ({"log_pi_target": torch.zeros(5, 3)}, ValueError, r"log_pi_target: expected shape \(3, 5\) like rewards, got"),
    ({"log_pi_behavior": torch.zeros(3, 5, 1)}, ValueError, r"log_pi_behavior: expected shape \(3, 5\).*expand_as"),
    ({"values": torch.zeros(5, 3)}, ValueError, r"values: expected shape \(3, 5\) like rewards, got \(5, 3\)"),
    ({"terminateds": torch.zeros(3)}, ValueError, r"terminateds: expected shape \(3, 5\).*expand_as"),
    ({"truncateds": torch.zeros(3, 1), "next_values": torch.zeros(3, 5)}, ValueError, r"truncateds: expected shape"),
    ({"last_value": torch.zeros(4)}, ValueError, r"last_value: expected shape \(3,\).*got \(4,\)"),
    ({"last_value": torch.zeros(5)}, ValueError, r"last_value: .*pass time_dim=0"),
    ({"last_value": torch.zeros(3, 1)}, ValueError, r"last_value: expected shape \(3,\)"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"lambda_": float("nan")}, ValueError, r"lambda_: expected a number in \[0, 1\], got nan"),
    ({"gamma": "0.9"}, TypeError, r"gamma: expected a float or a torch.Tensor, got str"),
    ({"gamma": None}, TypeError, r"gamma: expected"),
    ({"gamma": torch.tensor(0.9)}, ValueError, r"gamma: expected shape \(3, 5\).*one number for all steps as a float"),
    ({"rho_bar": 0.0}, ValueError, r"rho_bar: expected a positive number, got 0.0"),
    ({"rho_bar": -1}, ValueError, r"rho_bar: expected a positive number, got -1.0"),
    ({"c_bar": float("nan")}, ValueError, r"c_bar: expected a positive number, got nan"),
    ({"pg_rho_bar": -math.inf}, ValueError, r"pg_rho_bar: expected a positive number, got -inf"),
    ({"c_bar": "1"}, TypeError, r"c_bar: expected a float, got str"),
    ({"rho_bar": torch.tensor(1.0)}, TypeError, r"rho_bar: expected a float, got Tensor; convert it with float\(\)"),
    ({"pg_rho_bar": torch.ones(3, 5)}, TypeError, r"pg_rho_bar: expected a float, got Tensor"),
    ({"leak": 1.5}, ValueError, r"leak: expected a number in \[0, 1\], got 1.5"),
    ({"leak": -0.1}, ValueError, r"leak: expected a number in \[0, 1\], got -0.1"),
    ({"leak": math.nan}, ValueError, r"leak: expected a number in \[0, 1\], got nan"),
    ({"leak": 10**400}, ValueError, r"leak: expected a number in \[0, 1\], got an integer beyond"),
    ({"leak": None}, TypeError, r"leak: expected a float, got None"),
    ({"leak": torch.tensor(0.0)}, TypeError, r"leak: expected a float, got Tensor; convert it with float\(\)"),
    ({"rewards": torch.ones(3, 5).to_sparse()}, TypeError, r"rewards: expected a dense tensor"),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis of rewards"),
    ({"time_dim": -3}, ValueError, r"time_dim: expected an axis of rewards"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"rewards": torch.ones(())}, ValueError, r"rewards: expected at least one dimension"),
    (
        {"log_pi_target": torch.zeros(3, 5, device="meta")},
        RuntimeError,
        r"log_pi_target: expected a tensor on cpu.*meta",
    ),
    (
        {"bootstrap_values": torch.zeros(3, 5), "last_value": torch.zeros(3)},
        ValueError,
        r"bootstrap_values and last_value: expected at most one",
    ),
    (
        {"next_values": torch.zeros(3, 5), "last_value": torch.zeros(3)},
        ValueError,
        r"last_value and next_values: expected at most one",
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


def test_a_numpy_number_is_a_number() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"log_pi_target: .*ndarray.*torch.from_numpy"):
        call(log_pi_target=numpy.zeros((3, 5)))
    with pytest.raises(TypeError, match=r"rho_bar: expected a float, got ndarray; .* float\(\)"):
        call(rho_bar=numpy.array(1.0))
    for a, b in zip(call(rho_bar=numpy.float32(0.5)), call(rho_bar=0.5), strict=True):
        assert torch.equal(a, b)


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match=r"rewards has one dimension.*time_dim=0"):
        compute_vtrace(x, x, x, x, x)
    assert [y.shape for y in compute_vtrace(x, x, x, x, x, time_dim=0)] == [(4,), (4,)]


@pytest.mark.parametrize("number", [1, True])
def test_integers_are_numbers(number: int) -> None:
    names = ("gamma", "lambda_", "rho_bar", "c_bar", "pg_rho_bar")
    integers, floats = call(**dict.fromkeys(names, number)), call(**dict.fromkeys(names, float(number)))
    for a, b in zip(integers, floats, strict=True):
        assert torch.equal(a, b)


def test_what_the_clips_default_to() -> None:
    ratios = {"log_pi_target": torch.full((3, 5), 2.0)}

    def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
        pairs = zip(call(**ratios, **first), call(**ratios, **second), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    assert equal({}, {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0})
    assert equal({"rho_bar": 3.0}, {"rho_bar": 3.0, "pg_rho_bar": 3.0})
    assert equal({"rho_bar": None}, {"rho_bar": math.inf, "pg_rho_bar": math.inf})
    assert equal({"c_bar": None}, {"c_bar": math.inf})
    assert equal({"rho_bar": 1e300, "c_bar": 1e300}, {"rho_bar": None, "c_bar": None})
    assert not equal({"rho_bar": 3.0}, {})
    assert not equal({"c_bar": None}, {})
    assert not equal({"pg_rho_bar": math.inf}, {})


@pytest.mark.parametrize("leak", [0.0, 0, False, -0.0])
@pytest.mark.parametrize("clips", [{}, {"pg_rho_bar": 2.0}, {"next_values": torch.zeros(3, 5)}])
def test_no_leak_is_the_clip_of_an_infinite_ratio(leak: float, clips: dict[str, Any]) -> None:
    for targets in call(log_pi_target=torch.full((3, 5), 1000.0), leak=leak, **clips):
        assert targets.isfinite().all()


def test_an_infinite_ratio_leaks_where_there_is_a_leak() -> None:
    ratios = {"log_pi_target": torch.full((3, 5), 1000.0), "terminateds": torch.ones(3, 5)}
    for output in call(**ratios, leak=1e-3):
        assert (output == math.inf).all()
    for output, clipped in zip(call(leak=1e-3), call(), strict=True):
        assert torch.equal(output, clipped), "what is not clipped has nothing to leak"


PROMOTIONS: list[tuple[dict[str, torch.dtype], torch.dtype]] = [
    ({}, torch.float16),
    (dict.fromkeys(REAL, torch.bfloat16), torch.bfloat16),
    ({"log_pi_target": torch.bfloat16}, torch.float32),
    ({"log_pi_behavior": torch.float32}, torch.float32),
    ({"rewards": torch.int64}, torch.float32),
    ({"values": torch.float64}, torch.float64),
    ({"terminateds": torch.float64}, torch.float16),
    ({"gamma": torch.float32}, torch.float32),
    ({"bootstrap_values": torch.float64}, torch.float64),
    ({"last_value": torch.float32}, torch.float32),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    dtypes = dict.fromkeys(REAL, torch.float16) | dtypes
    given = {name: torch.ones(3 if name == "last_value" else (3, 5)).to(dtype) for name, dtype in dtypes.items()}
    assert [output.dtype for output in call(**given)] == [expected] * 2


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, Any] = {name: torch.randn(shape, generator=generator) for name in REAL}
    given["terminateds"] = torch.rand(shape, generator=generator) < 0.2
    given["last_value"] = torch.randn(shape[: dim % 3] + shape[dim % 3 + 1 :], generator=generator)
    expected = reference.compute_vtrace(**given, time_dim=dim)
    for a, b in zip(compute_vtrace(**given, time_dim=dim), expected, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"pg_rho_bar": 2.0}, {"next_values": torch.zeros(3, 5)}])
def test_outputs_are_laid_out_like_rewards(options: dict[str, Any]) -> None:
    transposed = torch.ones(5, 3).t()
    for rewards, strides in (
        (transposed, transposed.stride()),
        (torch.ones(3, 1).expand(3, 5), (5, 1)),
        (torch.ones(3, 10)[:, ::2], (5, 1)),
    ):
        for output in call(rewards=rewards, log_pi_target=transposed, **options):
            assert output.stride() == strides


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int]) -> None:
    x = torch.ones(shape)
    for dim in (0, 1):
        outputs = compute_vtrace(x, x, x, x, x, last_value=torch.ones(shape[1 - dim]), time_dim=dim)
        assert [output.shape for output in outputs] == [shape] * 2
        outputs = reference.compute_vtrace(x, x, x, x, x, last_value=torch.ones(shape[1 - dim]), time_dim=dim)
        assert [output.shape for output in outputs] == [shape] * 2


@pytest.mark.parametrize(
    "options", [{}, {"rho_bar": None, "c_bar": None}, {"pg_rho_bar": 2.0}, {"lambda_": 0.0}, {"leak": 0.5}]
)
@pytest.mark.parametrize("continuation", ["next_values", "bootstrap_values"])
def test_inputs_are_neither_changed_nor_returned(continuation: str, options: dict[str, Any]) -> None:
    given = {name: torch.rand(3, 5) for name in (*REAL, continuation)}
    before = {name: x.clone() for name, x in given.items()}
    for width in (5, 1):
        parts = {name: x[:, :width] for name, x in given.items()}
        targets, advantages = compute_vtrace(**parts, terminateds=torch.zeros(3, width), **options)
        kept = advantages.clone()
        targets.fill_(7.0)
        assert torch.equal(advantages, kept), "the outputs share memory"
        advantages.fill_(7.0)
        assert all(torch.equal(given[name], x) for name, x in before.items())


def test_truncations_without_a_value_warn() -> None:
    flags = torch.zeros(3, 5)
    for more in ({}, {"last_value": torch.zeros(3)}):
        with pytest.warns(UserWarning, match="pass bootstrap_values"):
            call(truncateds=flags, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for more in ({"bootstrap_values": torch.zeros(3, 5)}, {"next_values": torch.zeros(3, 5)}):
            call(truncateds=flags, **more)
        call()


def test_an_error_comes_before_the_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match=r"truncateds: expected a torch\.Tensor, got bool"):
            call(truncateds=False)


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_vtrace.api.CORRECTNESS_WARNINGS", True)
    with pytest.warns(UserWarning, match="last_value: not given"):
        call()
    for name in REAL:
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: torch.full((3, 5), math.nan)}, last_value=torch.zeros(3))
    for name, shape in (("last_value", (3,)), ("next_values", (3, 5)), ("bootstrap_values", (3, 5))):
        continuation = torch.zeros(shape)
        continuation[..., -1] = math.nan
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: continuation})
    with pytest.warns(UserWarning, match="bootstrap_values: non-zero at an ordinary step"):
        call(bootstrap_values=torch.ones(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(last_value=torch.zeros(3))
        call(terminateds=torch.ones(3, 5))
        # A probability of 0 is no NaN, and a density may be above 1.
        call(log_pi_target=torch.full((3, 5), -math.inf), last_value=torch.zeros(3))
        call(log_pi_behavior=torch.ones(3, 5), last_value=torch.zeros(3))
        # There are no numbers to look at.
        x = torch.zeros(3, 5, device="meta")
        compute_vtrace(x, x, x, x, x)
        torch.func.vmap(lambda r: call(rewards=r))(torch.ones(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = "import torch; from rl_triton_vtrace import compute_vtrace; x = torch.zeros(1, 1)"
    code += "; compute_vtrace(x, x, x, x, x)"
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: last_value: not given") == warnings_shown
