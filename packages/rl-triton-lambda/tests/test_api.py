"""The public call: signature, shapes, dtypes, layouts, errors and warnings."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from rl_triton_lambda import compute_lambda_returns, reference
from torch import Tensor


def call(**changes: Any) -> Tensor:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {
        "rewards": torch.ones(3, 5),
        "next_values": torch.zeros(3, 5),
        "terminateds": torch.zeros(3, 5),
    }
    return compute_lambda_returns(**(good | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_lambda_returns).parameters
    names = ["rewards", "next_values", "terminateds", "truncateds", "gamma", "lambda_", "bootstrap_values"]
    assert list(parameters) == [*names, "mask", "boundary", "next_start", "cu_seqlens", "time_dim", "out"]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "truncateds": None,
        "gamma": 0.99,
        "lambda_": 0.95,
        "bootstrap_values": None,
        "mask": None,
        "boundary": "ends_at",
        "next_start": None,
        "cu_seqlens": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == [
        "mask",
        "boundary",
        "next_start",
        "cu_seqlens",
        "time_dim",
        "out",
    ]


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [[1.0]]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"next_values": None}, TypeError, r"next_values: expected a torch.Tensor, got None"),
    ({"terminateds": 0}, TypeError, r"terminateds: expected a torch.Tensor, got int"),
    ({"bootstrap_values": 0.0}, TypeError, r"bootstrap_values: expected a torch.Tensor, got float"),
    ({"rewards": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"rewards: expected float16.*complex64"),
    ({"terminateds": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"terminateds: expected flags"),
    ({"next_values": torch.zeros(3, 5).to(torch.float8_e4m3fn)}, TypeError, r"next_values: expected .*float8"),
    ({"next_values": torch.zeros(5, 3)}, ValueError, r"next_values: expected .*\(3, 5\) like rewards, got \(5, 3\)"),
    ({"next_values": torch.zeros(3, 6)}, ValueError, r"next_values: expected shape \(3, 5\)"),
    ({"terminateds": torch.zeros(3)}, ValueError, r"terminateds: expected shape \(3, 5\).*expand_as"),
    ({"truncateds": torch.zeros(3, 1)}, ValueError, r"truncateds: expected shape"),
    ({"bootstrap_values": torch.zeros(3)}, ValueError, r"bootstrap_values: expected shape \(3, 5\)"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"lambda_": float("nan")}, ValueError, r"lambda_: expected a number in \[0, 1\], got nan"),
    ({"lambda_": -0.1}, ValueError, r"lambda_: expected a number in \[0, 1\]"),
    ({"gamma": "0.9"}, TypeError, r"gamma: expected a float or a torch.Tensor, got str"),
    ({"lambda_": None}, TypeError, r"lambda_: expected"),
    ({"gamma": torch.tensor(0.9)}, ValueError, r"gamma: expected shape \(3, 5\).*one number for all steps as a float"),
    ({"rewards": torch.ones(3, 5).to_sparse()}, TypeError, r"rewards: expected a dense tensor"),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"rewards": torch.ones(())}, ValueError, r"rewards: expected at least one dimension"),
    ({"next_values": torch.zeros(3, 5, device="meta")}, RuntimeError, r"next_values: expected a tensor on cpu.*meta"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


def test_a_numpy_array_is_told_how_to_become_a_tensor() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"rewards: .*ndarray.*torch.from_numpy"):
        call(rewards=numpy.ones((3, 5)))
    assert torch.equal(call(gamma=numpy.float32(0.5)), call(gamma=0.5))


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="time_dim=0"):
        compute_lambda_returns(x, x, x)
    assert compute_lambda_returns(x, x, x, time_dim=0).shape == (4,)


@pytest.mark.parametrize("number", [1, True, 0])
def test_integers_are_numbers(number: int) -> None:
    assert torch.equal(call(gamma=number, lambda_=number), call(gamma=float(number), lambda_=float(number)))


PROMOTIONS = [
    ({"rewards": torch.float16, "next_values": torch.float16}, torch.float16),
    ({"rewards": torch.bfloat16, "next_values": torch.bfloat16}, torch.bfloat16),
    ({"rewards": torch.float16, "next_values": torch.bfloat16}, torch.float32),
    ({"rewards": torch.int64, "next_values": torch.float16}, torch.float32),
    ({"rewards": torch.float32, "next_values": torch.float64}, torch.float64),
    ({"rewards": torch.bfloat16, "next_values": torch.bfloat16, "terminateds": torch.float64}, torch.bfloat16),
    ({"rewards": torch.bfloat16, "next_values": torch.bfloat16, "lambda_": torch.float32}, torch.float32),
    ({"rewards": torch.float32, "next_values": torch.float32, "bootstrap_values": torch.float64}, torch.float64),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    assert call(**{name: torch.ones(3, 5).to(dtype) for name, dtype in dtypes.items()}).dtype == expected


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    rewards, next_values, bootstrap_values = (torch.randn(shape, generator=generator) for _ in range(3))
    terminateds, truncateds = (torch.rand(shape, generator=generator) < 0.2 for _ in range(2))
    arguments = (rewards, next_values, terminateds, truncateds, 0.99, 0.95, bootstrap_values)
    actual = compute_lambda_returns(*arguments, time_dim=dim)
    expected = reference.compute_lambda_returns(*arguments, time_dim=dim)
    torch.testing.assert_close(actual, expected.float())


def test_outputs_are_laid_out_like_rewards() -> None:
    x = torch.zeros(3, 5)
    transposed = torch.ones(5, 3).t()
    assert compute_lambda_returns(transposed, x, x).stride() == transposed.stride()
    assert compute_lambda_returns(torch.ones(3, 1).expand(3, 5), x, x).is_contiguous()
    assert compute_lambda_returns(torch.ones(3, 10)[:, ::2], x, x).is_contiguous()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int]) -> None:
    x = torch.ones(shape)
    for dim in (0, 1):
        assert compute_lambda_returns(x, x, x, x, bootstrap_values=x, time_dim=dim).shape == shape


def test_inputs_are_neither_changed_nor_returned() -> None:
    given = {name: torch.rand(3, 5) for name in ("rewards", "next_values", "bootstrap_values")}
    given |= {name: torch.rand(3, 5) < 0.5 for name in ("terminateds", "truncateds")}
    before = {name: x.clone() for name, x in given.items()}
    for width in (5, 1):
        returns = compute_lambda_returns(**{name: x[:, :width] for name, x in given.items()})
        returns.fill_(7.0)
        assert all(torch.equal(given[name], x) for name, x in before.items())


def test_truncations_need_no_bootstrap_values() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        returns = call(next_values=torch.ones(3, 5), truncateds=torch.ones(3, 5), gamma=0.5)
    assert torch.equal(returns, torch.full((3, 5), 1.5))


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_lambda.api.CORRECTNESS_WARNINGS", True)
    for name in ("rewards", "next_values", "bootstrap_values", "gamma", "lambda_"):
        numbers = torch.zeros(3, 5)
        numbers[:, -1] = float("nan")
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: numbers})
    with pytest.warns(UserWarning, match="bootstrap_values: non-zero at an ordinary step"):
        call(bootstrap_values=torch.ones(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The last column always has something to continue with.
        call()
        call(truncateds=torch.ones(3, 5), bootstrap_values=torch.ones(3, 5))
        # There are no numbers to look at.
        x = torch.zeros(3, 5, device="meta")
        compute_lambda_returns(x, x, x)
        torch.func.vmap(lambda r: call(rewards=r))(torch.ones(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = "import torch; from rl_triton_lambda import compute_lambda_returns; x = torch.ones(1, 2) * float('nan'); "
    code += "compute_lambda_returns(torch.ones(1, 2), x, torch.zeros(1, 2))"
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: next_values: holds NaN") == warnings_shown
