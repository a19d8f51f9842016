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
from rl_triton_returns import compute_discounted_returns, reference
from torch import Tensor


def call(**changes: Any) -> Tensor:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {"rewards": torch.ones(3, 5), "terminateds": torch.zeros(3, 5)}
    return compute_discounted_returns(**(good | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_discounted_returns).parameters
    names = ["rewards", "terminateds", "truncateds", "gamma", "bootstrap_values"]
    assert list(parameters) == [*names, "last_value", "mask", "boundary", "next_start", "cu_seqlens", "time_dim", "out"]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "truncateds": None,
        "gamma": 0.99,
        "bootstrap_values": None,
        "last_value": None,
        "mask": None,
        "boundary": "ends_at",
        "next_start": None,
        "cu_seqlens": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == [
        "last_value",
        "mask",
        "boundary",
        "next_start",
        "cu_seqlens",
        "time_dim",
        "out",
    ]


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [[1.0]]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"rewards": None}, TypeError, r"rewards: expected a torch.Tensor, got None"),
    ({"terminateds": 0}, TypeError, r"terminateds: expected a torch.Tensor, got int"),
    ({"last_value": 0.0}, TypeError, r"last_value: expected a torch.Tensor, got float"),
    ({"rewards": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"rewards: expected float16.*complex64"),
    ({"terminateds": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"terminateds: expected flags"),
    ({"bootstrap_values": torch.zeros(3, 5).to(torch.float8_e4m3fn)}, TypeError, r"bootstrap_values: .*float8"),
    ({"terminateds": torch.zeros(5, 3)}, ValueError, r"terminateds: expected .*\(3, 5\) like rewards, got \(5, 3\)"),
    ({"terminateds": torch.zeros(3)}, ValueError, r"terminateds: expected shape \(3, 5\).*expand_as"),
    ({"truncateds": torch.zeros(3, 1)}, ValueError, r"truncateds: expected shape"),
    ({"last_value": torch.zeros(4)}, ValueError, r"last_value: expected shape \(3,\).*got \(4,\)"),
    ({"last_value": torch.zeros(5)}, ValueError, r"last_value: .*pass time_dim=0"),
    ({"last_value": torch.zeros(3, 1)}, ValueError, r"last_value: expected shape \(3,\)"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"gamma": float("nan")}, ValueError, r"gamma: expected a number in \[0, 1\], got nan"),
    ({"gamma": "0.9"}, TypeError, r"gamma: expected a float or a torch.Tensor, got str"),
    ({"gamma": None}, TypeError, r"gamma: expected"),
    ({"gamma": 10**400}, ValueError, r"gamma: expected a number in \[0, 1\], got an integer beyond"),
    ({"gamma": torch.tensor(0.9)}, ValueError, r"gamma: expected shape \(3, 5\).*one number for all steps as a float"),
    ({"rewards": torch.ones(3, 5).to_sparse()}, TypeError, r"rewards: expected a dense tensor"),
    ({"time_dim": -3}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"rewards": torch.ones(())}, ValueError, r"rewards: expected at least one dimension"),
    ({"terminateds": torch.zeros(3, 5, device="meta")}, RuntimeError, r"terminateds: expected a tensor on cpu.*meta"),
    (
        {"bootstrap_values": torch.zeros(3, 5), "last_value": torch.zeros(3)},
        ValueError,
        r"^bootstrap_values and last_value: expected at most one of bootstrap_values, last_value, got 2$",
    ),
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
        compute_discounted_returns(x, x)
    assert compute_discounted_returns(x, x, time_dim=0).shape == (4,)


@pytest.mark.parametrize("number", [1, True, 0])
def test_integers_are_numbers(number: int) -> None:
    assert torch.equal(call(gamma=number), call(gamma=float(number)))


PROMOTIONS = [
    ({"rewards": torch.float16}, torch.float16),
    ({"rewards": torch.bfloat16, "terminateds": torch.float64}, torch.bfloat16),
    ({"rewards": torch.float16, "bootstrap_values": torch.bfloat16}, torch.float32),
    ({"rewards": torch.int64}, torch.float32),
    ({"rewards": torch.float32, "last_value": torch.float64}, torch.float64),
    ({"rewards": torch.bfloat16, "gamma": torch.float32}, torch.float32),
    ({"rewards": torch.float16, "last_value": torch.float32}, torch.float32),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    given = {name: torch.ones(3 if name == "last_value" else (3, 5)).to(dtype) for name, dtype in dtypes.items()}
    assert call(**given).dtype == expected


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(shape, generator=generator)
    terminateds = torch.rand(shape, generator=generator) < 0.2
    last_value = torch.randn(shape[: dim % 3] + shape[dim % 3 + 1 :], generator=generator)
    actual = compute_discounted_returns(rewards, terminateds, last_value=last_value, time_dim=dim)
    expected = reference.compute_discounted_returns(rewards, terminateds, last_value=last_value, time_dim=dim)
    torch.testing.assert_close(actual, expected.float())


def test_outputs_are_laid_out_like_rewards() -> None:
    flags = torch.zeros(3, 5)
    transposed = torch.ones(5, 3).t()
    assert compute_discounted_returns(transposed, flags).stride() == transposed.stride()
    assert compute_discounted_returns(torch.ones(3, 1).expand(3, 5), flags).is_contiguous()
    assert compute_discounted_returns(torch.ones(3, 10)[:, ::2], flags).is_contiguous()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int]) -> None:
    x = torch.ones(shape)
    for dim in (0, 1):
        last_value = torch.ones(shape[1 - dim])
        assert compute_discounted_returns(x, x, last_value=last_value, time_dim=dim).shape == shape
        assert compute_discounted_returns(x, x, x, bootstrap_values=x, time_dim=dim).shape == shape


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", [(), ("truncateds",), ("bootstrap_values",), ("truncateds", "bootstrap_values")])
def test_inputs_are_neither_changed_nor_returned(names: tuple[str, ...]) -> None:
    given = {name: torch.rand(3, 5).round() for name in ("rewards", "terminateds", *names)}
    before = {name: x.clone() for name, x in given.items()}
    for width in (5, 1):
        for gamma in (0.0, 0.99):
            returns = compute_discounted_returns(**{name: x[:, :width] for name, x in given.items()}, gamma=gamma)
            returns.fill_(7.0)
            assert all(torch.equal(given[name], x) for name, x in before.items())


def test_truncations_without_a_value_warn() -> None:
    flags = torch.zeros(3, 5)
    for more in ({}, {"last_value": torch.zeros(3)}):
        with pytest.warns(UserWarning, match="pass bootstrap_values") as warned:
            call(truncateds=flags, **more)
        assert "next_values" not in str(warned[0].message)
        assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(truncateds=flags, bootstrap_values=torch.zeros(3, 5))
        call()


def test_an_error_comes_before_the_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match=r"truncateds: expected a torch\.Tensor, got bool"):
            call(truncateds=False)


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_returns.api.CORRECTNESS_WARNINGS", True)
    with pytest.warns(UserWarning, match="last_value: not given"):
        call()
    for name in ("rewards", "gamma"):
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: torch.full((3, 5), float("nan")), "last_value": torch.zeros(3)})
    for name, shape in (("last_value", (3,)), ("bootstrap_values", (3, 5))):
        continuation = torch.zeros(shape)
        continuation[..., -1] = float("nan")
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: continuation})
    with pytest.warns(UserWarning, match="bootstrap_values: non-zero at an ordinary step"):
        call(bootstrap_values=torch.ones(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(last_value=torch.zeros(3))
        call(bootstrap_values=torch.zeros(3, 5))
        call(terminateds=torch.ones(3, 5))
        # There are no numbers to look at.
        x = torch.zeros(3, 5, device="meta")
        compute_discounted_returns(x, x)
        torch.func.vmap(lambda r: call(rewards=r))(torch.ones(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = "import torch; from rl_triton_returns import compute_discounted_returns; x = torch.ones(1, 1); "
    code += "compute_discounted_returns(x, 0 * x)"
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: last_value: not given") == warnings_shown
