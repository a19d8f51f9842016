"""The public call of n-step returns: signature, shapes, dtypes, layouts, errors and warnings."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from rl_triton_returns import compute_n_step_returns, reference
from torch import Tensor


def call(**changes: Any) -> Tensor:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {"rewards": torch.ones(3, 5), "values": torch.ones(3, 5), "terminateds": torch.zeros(3, 5)}
    return compute_n_step_returns(**(good | {"n": 2} | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_n_step_returns).parameters
    names = ["rewards", "values", "terminateds", "truncateds", "gamma", "n", "bootstrap_values", "last_value"]
    keywords = ["next_values", "time_dim", "out"]
    assert list(parameters) == names + keywords
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "truncateds": None,
        "gamma": 0.99,
        "n": 5,
        "bootstrap_values": None,
        "last_value": None,
        "next_values": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == keywords


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [[1.0]]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"rewards": None}, TypeError, r"rewards: expected a torch.Tensor, got None"),
    ({"values": None}, TypeError, r"values: expected a torch.Tensor, since there are no next_values, got None"),
    ({"values": 0.0}, TypeError, r"values: expected a torch.Tensor, got float"),
    ({"terminateds": 0}, TypeError, r"terminateds: expected a torch.Tensor, got int"),
    ({"last_value": 0.0}, TypeError, r"last_value: expected a torch.Tensor, got float"),
    ({"rewards": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"rewards: expected float16.*complex64"),
    ({"terminateds": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"terminateds: expected flags"),
    ({"values": torch.zeros(5, 3)}, ValueError, r"values: expected shape \(3, 5\) like rewards, got \(5, 3\)"),
    ({"terminateds": torch.zeros(3)}, ValueError, r"terminateds: expected shape \(3, 5\).*expand_as"),
    ({"last_value": torch.zeros(5)}, ValueError, r"last_value: .*pass time_dim=0"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"gamma": None}, TypeError, r"gamma: expected"),
    ({"gamma": torch.tensor(0.9)}, ValueError, r"gamma: expected shape \(3, 5\).*one number for all steps as a float"),
    ({"n": 0}, ValueError, r"n: expected a positive int, got 0"),
    ({"n": -3}, ValueError, r"n: expected a positive int, got -3"),
    ({"n": 2.0}, TypeError, r"n: expected a positive int, got float"),
    ({"n": True}, TypeError, r"n: expected a positive int, got bool"),
    ({"n": None}, TypeError, r"n: expected a positive int, got NoneType"),
    ({"n": torch.ones(3, 5)}, TypeError, r"n: expected a positive int, got Tensor"),
    ({"time_dim": -3}, ValueError, r"time_dim: expected an axis"),
    ({"rewards": torch.ones(())}, ValueError, r"rewards: expected at least one dimension"),
    ({"values": torch.zeros(3, 5, device="meta")}, RuntimeError, r"values: expected a tensor on cpu.*meta"),
    ({"out": torch.zeros(3, 4)}, ValueError, r"out: expected shape \(3, 5\)"),
    ({"out": torch.zeros(3, 5).double()}, TypeError, r"out: expected torch.float32"),
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


def test_out_records_no_gradient_and_is_no_argument() -> None:
    rewards = torch.ones(3, 5)
    with pytest.raises(ValueError, match="out: expected memory of its own, but it overlaps rewards"):
        call(rewards=rewards, out=rewards)
    with pytest.raises(RuntimeError, match="no gradient is recorded through out"):
        call(rewards=rewards.clone().requires_grad_(), out=torch.empty(3, 5))
    out = torch.full((3, 5), float("nan"))
    assert call(out=out) is out
    assert torch.equal(out, call())


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="time_dim=0"):
        compute_n_step_returns(x, x, x)
    assert compute_n_step_returns(x, x, x, time_dim=0).shape == (4,)


def test_steps_may_be_any_positive_int() -> None:
    assert torch.equal(call(n=10**30), call(n=5))
    assert not torch.equal(call(n=4, values=torch.zeros(3, 5)), call(n=5))


def test_next_values_take_the_place_of_values() -> None:
    next_values = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    given = {"next_values": next_values, "truncateds": torch.eye(5)[:3]}
    expected = reference.compute_n_step_returns(torch.ones(3, 5), None, torch.zeros(3, 5), n=2, **given)
    for values in (None, torch.full((3, 5), float("nan"))):
        torch.testing.assert_close(call(values=values, **given), expected.float())


PROMOTIONS = [
    ({"rewards": torch.float16, "values": torch.float16}, torch.float16),
    ({"rewards": torch.bfloat16, "values": torch.bfloat16, "terminateds": torch.float64}, torch.bfloat16),
    ({"rewards": torch.float16, "values": torch.bfloat16}, torch.float32),
    ({"rewards": torch.int64, "values": torch.float16}, torch.float32),
    ({"rewards": torch.float32, "last_value": torch.float64}, torch.float64),
    ({"rewards": torch.bfloat16, "values": torch.bfloat16, "gamma": torch.float32}, torch.float32),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    given = {name: torch.ones(3 if name == "last_value" else (3, 5)).to(dtype) for name, dtype in dtypes.items()}
    assert call(**given).dtype == expected


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64], ids=str)
def test_flags_of_any_dtype(dtype: torch.dtype) -> None:
    flags = torch.eye(5)[:3]
    expected = reference.compute_n_step_returns(torch.ones(3, 5), torch.ones(3, 5), flags, n=2).float()
    torch.testing.assert_close(call(terminateds=flags.to(dtype) * (1 if dtype == torch.bool else 3)), expected)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    given: dict[str, Any] = {name: torch.randn(shape, generator=generator) for name in ("rewards", "values")}
    given["terminateds"] = torch.rand(shape, generator=generator) < 0.2
    given["last_value"] = torch.randn(shape[: dim % 3] + shape[dim % 3 + 1 :], generator=generator)
    for n in (1, 2, 3):
        expected = reference.compute_n_step_returns(**given, n=n, time_dim=dim)
        torch.testing.assert_close(compute_n_step_returns(**given, n=n, time_dim=dim), expected.float())


@pytest.mark.parametrize("n", [1, 2, 9])
def test_outputs_are_laid_out_like_rewards(n: int) -> None:
    transposed = torch.ones(5, 3).t()
    assert call(rewards=transposed, n=n).stride() == transposed.stride()
    assert call(rewards=torch.ones(3, 1).expand(3, 5), n=n).is_contiguous()
    assert call(rewards=torch.ones(3, 10)[:, ::2], values=transposed, n=n).is_contiguous()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int]) -> None:
    x = torch.ones(shape)
    for function in (compute_n_step_returns, reference.compute_n_step_returns):
        for dim in (0, 1):
            last_value = torch.ones(shape[1 - dim])
            assert function(x, x, x, n=2, last_value=last_value, time_dim=dim).shape == shape
            assert function(x, x, x, x, n=2, bootstrap_values=x, time_dim=dim).shape == shape


@pytest.mark.filterwarnings("ignore:truncateds without")
@pytest.mark.parametrize("names", [(), ("truncateds",), ("bootstrap_values",), ("next_values",)])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_inputs_are_neither_changed_nor_returned(n: int, names: tuple[str, ...]) -> None:
    given = {name: torch.rand(3, 5).round() for name in ("rewards", "values", "terminateds", *names)}
    before = {name: x.clone() for name, x in given.items()}
    for width in (5, 1):
        returns = compute_n_step_returns(**{name: x[:, :width] for name, x in given.items()}, n=n)
        returns.fill_(7.0)
        assert all(torch.equal(given[name], x) for name, x in before.items())


def test_truncations_without_a_value_warn() -> None:
    flags = torch.zeros(3, 5)
    for more in ({}, {"last_value": torch.zeros(3)}):
        with pytest.warns(UserWarning, match=r"pass bootstrap_values .* or next_values") as warned:
            call(truncateds=flags, **more)
        assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for more in ({"bootstrap_values": torch.zeros(3, 5)}, {"next_values": torch.zeros(3, 5)}):
            call(truncateds=flags, **more)
        call()
        with pytest.raises(TypeError, match=r"truncateds: expected a torch\.Tensor, got bool"):
            call(truncateds=False)


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_returns.n_step.CORRECTNESS_WARNINGS", True)
    with pytest.warns(UserWarning, match="last_value: not given"):
        call()
    for name in ("rewards", "values", "gamma"):
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: torch.full((3, 5), float("nan")), "last_value": torch.zeros(3)})
    for name, shape in (("last_value", (3,)), ("bootstrap_values", (3, 5)), ("next_values", (3, 5))):
        continuation = torch.zeros(shape)
        continuation[..., -1] = float("nan")
        with pytest.warns(UserWarning, match=f"{name}: holds NaN"):
            call(**{name: continuation})
    with pytest.warns(UserWarning, match="bootstrap_values: non-zero at an ordinary step"):
        call(bootstrap_values=torch.ones(3, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(last_value=torch.zeros(3))
        call(values=None, next_values=torch.ones(3, 5))
        call(terminateds=torch.ones(3, 5))
        # There are no numbers to look at.
        x = torch.zeros(3, 5, device="meta")
        compute_n_step_returns(x, x, x)
        torch.func.vmap(lambda r: call(rewards=r))(torch.ones(2, 3, 5))
