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
from rl_triton_gae import compute_gae, reference
from torch import Tensor


def call(**changes: Any) -> Tensor:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {"rewards": torch.ones(3, 5), "values": torch.zeros(3, 5), "terminateds": torch.zeros(3, 5)}
    return compute_gae(**(good | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_gae).parameters
    names = ["rewards", "values", "terminateds", "truncateds", "gamma", "lambda_", "bootstrap_values", "last_value"]
    keywords = [
        "next_values",
        "return_targets",
        "targets_lambda",
        "normalize",
        "mask",
        "boundary",
        "next_start",
        "cu_seqlens",
        "time_dim",
        "out",
    ]
    assert list(parameters) == [*names, *keywords]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "truncateds": None,
        "gamma": 0.99,
        "lambda_": 0.95,
        "bootstrap_values": None,
        "last_value": None,
        "next_values": None,
        "return_targets": False,
        "targets_lambda": None,
        "normalize": False,
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
    ({"values": None}, TypeError, r"values: expected a torch.Tensor, got None"),
    ({"terminateds": 0}, TypeError, r"terminateds: expected a torch.Tensor, got int"),
    ({"rewards": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"rewards: expected float16.*complex64"),
    ({"terminateds": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"terminateds: expected flags"),
    ({"values": torch.zeros(3, 5).to(torch.float8_e4m3fn)}, TypeError, r"values: expected .*float8"),
    ({"values": torch.zeros(5, 3)}, ValueError, r"values: expected shape \(3, 5\) like rewards, got \(5, 3\)"),
    ({"terminateds": torch.zeros(3)}, ValueError, r"terminateds: expected shape \(3, 5\).*expand_as"),
    ({"truncateds": torch.zeros(3, 1), "next_values": torch.zeros(3, 5)}, ValueError, r"truncateds: expected shape"),
    ({"last_value": torch.zeros(4)}, ValueError, r"last_value: expected shape \(3,\).*got \(4,\)"),
    ({"last_value": torch.zeros(5)}, ValueError, r"last_value: .*pass time_dim=0"),
    ({"last_value": torch.zeros(3, 1)}, ValueError, r"last_value: expected shape \(3,\)"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"gamma": -0.1}, ValueError, r"gamma: expected a number in \[0, 1\]"),
    ({"lambda_": float("nan")}, ValueError, r"lambda_: expected a number in \[0, 1\], got nan"),
    ({"gamma": "0.9"}, TypeError, r"gamma: expected a float or a torch.Tensor, got str"),
    ({"gamma": None}, TypeError, r"gamma: expected"),
    ({"gamma": 10**400}, ValueError, r"gamma: expected a number in \[0, 1\], got an integer beyond"),
    ({"gamma": torch.tensor(0.9)}, ValueError, r"gamma: expected shape \(3, 5\).*one number for all steps as a float"),
    ({"rewards": torch.ones(3, 5).to_sparse()}, TypeError, r"rewards: expected a dense tensor"),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": -3}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"rewards": torch.ones(())}, ValueError, r"rewards: expected at least one dimension"),
    ({"values": torch.zeros(3, 5, device="meta")}, RuntimeError, r"values: expected a tensor on cpu.*meta"),
    ({"boundary": "start"}, ValueError, r"boundary: expected 'ends_at' or 'starts_at', got 'start'"),
    ({"next_start": torch.zeros(3)}, ValueError, r"next_start: expected None with boundary"),
    (
        {"boundary": "starts_at", "next_start": torch.zeros(5)},
        ValueError,
        r"next_start: expected shape \(3,\).*got \(5,\)",
    ),
    ({"boundary": "starts_at", "next_start": True}, TypeError, r"next_start: expected a torch.Tensor, got bool"),
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


def test_a_numpy_array_is_told_how_to_become_a_tensor() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"rewards: .*ndarray.*torch.from_numpy"):
        call(rewards=numpy.ones((3, 5)))
    with pytest.raises(TypeError, match=r"gamma: expected a float or a torch.Tensor, got ndarray; .* float\(\)"):
        call(gamma=numpy.array(0.9))
    assert torch.equal(call(gamma=numpy.float32(0.5)), call(gamma=0.5))


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="time_dim=0"):
        compute_gae(x, x, x)
    assert compute_gae(x, x, x, time_dim=0).shape == (4,)


@pytest.mark.parametrize("number", [1, True, 0])
def test_integers_are_numbers(number: int) -> None:
    assert torch.equal(call(gamma=number, lambda_=number), call(gamma=float(number), lambda_=float(number)))


PROMOTIONS = [
    ({"rewards": torch.float16, "values": torch.float16}, torch.float16),
    ({"rewards": torch.bfloat16, "values": torch.bfloat16}, torch.bfloat16),
    ({"rewards": torch.float16, "values": torch.bfloat16}, torch.float32),
    ({"rewards": torch.int64, "values": torch.float16}, torch.float32),
    ({"rewards": torch.float32, "values": torch.float64}, torch.float64),
    ({"rewards": torch.bfloat16, "values": torch.bfloat16, "terminateds": torch.float64}, torch.bfloat16),
    ({"rewards": torch.bfloat16, "values": torch.bfloat16, "gamma": torch.float32}, torch.float32),
    ({"rewards": torch.float32, "values": torch.float32, "bootstrap_values": torch.float64}, torch.float64),
    ({"rewards": torch.float16, "values": torch.float16, "last_value": torch.float32}, torch.float32),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    given = {name: torch.ones(3 if name == "last_value" else (3, 5)).to(dtype) for name, dtype in dtypes.items()}
    assert call(**given).dtype == expected


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(shape, generator=generator) for _ in range(2))
    terminateds = torch.rand(shape, generator=generator) < 0.2
    last_value = torch.randn(shape[: dim % 3] + shape[dim % 3 + 1 :], generator=generator)
    actual = compute_gae(rewards, values, terminateds, last_value=last_value, time_dim=dim)
    expected = reference.compute_gae(rewards, values, terminateds, last_value=last_value, time_dim=dim)
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-5)


def test_outputs_are_laid_out_like_rewards() -> None:
    flags = torch.zeros(3, 5)
    transposed = torch.ones(5, 3).t()
    assert compute_gae(transposed, torch.zeros(3, 5), flags).stride() == transposed.stride()
    assert compute_gae(torch.ones(3, 1).expand(3, 5), torch.zeros(3, 5), flags).is_contiguous()
    assert compute_gae(torch.ones(3, 10)[:, ::2], torch.zeros(3, 5), flags).is_contiguous()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int]) -> None:
    x = torch.ones(shape)
    for dim in (0, 1):
        assert compute_gae(x, x, x, last_value=torch.ones(shape[1 - dim]), time_dim=dim).shape == shape


def test_inputs_are_neither_changed_nor_returned() -> None:
    given = {name: torch.rand(3, 5) for name in ("rewards", "values", "next_values")}
    before = {name: x.clone() for name, x in given.items()}
    for width in (5, 1):
        parts = {name: x[:, :width] for name, x in given.items()}
        advantages = compute_gae(**parts, terminateds=torch.zeros(3, width))
        advantages.fill_(7.0)
        assert all(torch.equal(given[name], x) for name, x in before.items())


@pytest.mark.parametrize("starts", [False, True])
def test_targets_are_advantages_and_values(starts: bool) -> None:
    more: dict[str, Any] = {"boundary": "starts_at", "next_start": torch.ones(3)} if starts else {}
    more |= {"values": torch.rand(3, 5), "terminateds": torch.eye(3, 5)}
    advantages, targets = call(**more, return_targets=True)
    assert torch.equal(advantages, call(**more))
    assert torch.equal(targets, advantages + more["values"])
    buffers = torch.empty(2, 3, 5)
    returned = call(**more, return_targets=True, out=(buffers[0], buffers[1]))
    assert torch.equal(torch.stack(tuple(returned)), buffers)
    assert torch.equal(buffers[1], targets)
    with pytest.raises(TypeError, match="out: expected a tuple of 2 tensors"):
        call(**more, return_targets=True, out=buffers[0])


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
    monkeypatch.setattr("rl_triton_gae.api.CORRECTNESS_WARNINGS", True)
    with pytest.warns(UserWarning, match="last_value: not given"):
        call()
    with pytest.warns(UserWarning, match="rewards: holds NaN"):
        call(rewards=torch.full((3, 5), float("nan")), last_value=torch.zeros(3))
    for name, shape in (("last_value", (3,)), ("next_values", (3, 5)), ("bootstrap_values", (3, 5))):
        continuation = torch.zeros(shape)
        continuation[..., -1] = float("nan")
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: continuation})
    with pytest.warns(UserWarning, match="bootstrap_values: non-zero at an ordinary step"):
        call(bootstrap_values=torch.ones(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(last_value=torch.zeros(3))
        call(terminateds=torch.ones(3, 5))
        # There are no numbers to look at.
        x = torch.zeros(3, 5, device="meta")
        compute_gae(x, x, x)
        torch.func.vmap(lambda r: call(rewards=r))(torch.ones(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = "import torch; from rl_triton_gae import compute_gae; x = torch.ones(1, 1); compute_gae(x, x, 0 * x)"
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: last_value: not given") == warnings_shown
