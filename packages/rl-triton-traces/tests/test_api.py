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
from rl_triton_traces import compute_eligibility_traces, reference
from torch import Tensor


def call(**changes: Any) -> Tensor:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {"gradients": torch.ones(3, 5), "dones": torch.zeros(3, 5), "gamma": 0.9, "lambda_": 0.8}
    return compute_eligibility_traces(**(good | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_eligibility_traces).parameters
    positional, keywords = ["gradients", "dones", "gamma", "lambda_", "seed_values"], ["kind", "alpha", "ratios"]
    assert list(parameters) == [*positional, *keywords, "cu_seqlens", "time_dim", "out"]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "seed_values": None,
        "kind": "accumulating",
        "alpha": None,
        "ratios": None,
        "cu_seqlens": None,
        "time_dim": 1,
        "out": None,
    }
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == [
        *keywords,
        "cu_seqlens",
        "time_dim",
        "out",
    ]


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"gradients": [[1.0]]}, TypeError, r"gradients: expected a torch.Tensor, got list"),
    ({"dones": None}, TypeError, r"dones: expected a torch.Tensor, got None"),
    ({"dones": False}, TypeError, r"dones: expected a torch.Tensor, got bool"),
    ({"seed_values": 0.0}, TypeError, r"seed_values: expected a torch.Tensor, got float"),
    ({"gradients": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"gradients: expected float16.*complex64"),
    ({"dones": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"dones: expected flags"),
    ({"seed_values": torch.zeros(3).to(torch.float8_e4m3fn)}, TypeError, r"seed_values: expected .*float8"),
    ({"gradients": torch.ones(3, 5).to_sparse()}, TypeError, r"gradients: expected a dense tensor"),
    ({"dones": torch.zeros(5, 3)}, ValueError, r"dones: expected shape \(3, 5\) like gradients, got \(5, 3\)"),
    ({"dones": torch.zeros(3)}, ValueError, r"dones: expected shape \(3, 5\).*expand_as"),
    ({"gradients": torch.ones(3, 5, 2)}, ValueError, r"dones: expected shape \(3, 5, 2\).*expand_as"),
    ({"seed_values": torch.zeros(4)}, ValueError, r"seed_values: expected shape \(3,\).*got \(4,\)"),
    ({"seed_values": torch.zeros(5)}, ValueError, r"seed_values: .*pass time_dim=0"),
    ({"seed_values": torch.zeros(3, 1)}, ValueError, r"seed_values: expected shape \(3,\)"),
    ({"gamma": 1.5}, ValueError, r"gamma: expected a number in \[0, 1\], got 1.5"),
    ({"gamma": -0.1}, ValueError, r"gamma: expected a number in \[0, 1\]"),
    ({"lambda_": math.nan}, ValueError, r"lambda_: expected a number in \[0, 1\], got nan"),
    ({"gamma": 10**400}, ValueError, r"gamma: expected a number in \[0, 1\], got an integer beyond"),
    ({"gamma": "0.9"}, TypeError, r"gamma: expected a float, got str"),
    ({"lambda_": None}, TypeError, r"lambda_: expected a float, got None"),
    ({"gamma": torch.tensor(0.9)}, TypeError, r"gamma: expected a float, got Tensor; convert it with float\(\)"),
    ({"lambda_": torch.ones(3, 5)}, TypeError, r"lambda_: expected a float, got Tensor; it is one number for all"),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": -3}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"gradients": torch.ones(())}, ValueError, r"gradients: expected at least one dimension"),
    ({"dones": torch.zeros(3, 5, device="meta")}, RuntimeError, r"dones: expected a tensor on cpu.*meta"),
    ({"kind": "Dutch"}, ValueError, r"kind: expected 'accumulating', 'replacing' or 'dutch', got 'Dutch'"),
    ({"kind": None}, TypeError, r"kind: expected 'accumulating', 'replacing' or 'dutch', got NoneType"),
    ({"kind": 1, "alpha": 0.5}, TypeError, r"kind: expected .*got int"),
    ({"kind": "dutch"}, TypeError, r"alpha: expected a float with kind='dutch'.*got None"),
    ({"kind": "dutch", "alpha": 1.5}, ValueError, r"alpha: expected a number in \[0, 1\], got 1.5"),
    ({"kind": "dutch", "alpha": -0.1}, ValueError, r"alpha: expected a number in \[0, 1\]"),
    ({"kind": "dutch", "alpha": math.nan}, ValueError, r"alpha: expected a number in \[0, 1\], got nan"),
    ({"kind": "dutch", "alpha": "0.5"}, TypeError, r"alpha: expected a float, got str"),
    ({"kind": "dutch", "alpha": torch.ones(3, 5)}, TypeError, r"alpha: expected a float, got Tensor"),
    ({"alpha": 0.5}, ValueError, r"alpha: expected None with kind='accumulating', got float.*kind='dutch'"),
    ({"alpha": torch.ones(3, 5), "kind": "replacing"}, ValueError, r"alpha: .*kind='replacing', got Tensor"),
    ({"kind": "dutch", "alpha": 0.5, "ratios": torch.ones(3, 5)}, ValueError, r"ratios: .*kind='dutch', got Tensor"),
    ({"ratios": 1.0}, TypeError, r"ratios: expected a torch.Tensor, got float"),
    ({"ratios": torch.ones(5, 3)}, ValueError, r"ratios: expected shape \(3, 5\) like gradients, got \(5, 3\)"),
    ({"ratios": torch.ones(3), "kind": "replacing"}, ValueError, r"ratios: expected shape \(3, 5\).*expand_as"),
    ({"ratios": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"ratios: expected float16.*complex64"),
    ({"ratios": torch.ones(3, 5).to_sparse()}, TypeError, r"ratios: expected a dense tensor"),
    ({"ratios": torch.ones(3, 5, device="meta")}, RuntimeError, r"ratios: expected a tensor on cpu.*meta"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


def test_numpy_numbers_and_arrays() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"gradients: .*ndarray.*torch.from_numpy"):
        call(gradients=numpy.ones((3, 5)))
    assert torch.equal(call(gamma=numpy.float32(0.5)), call(gamma=0.5))


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="time_dim=0"):
        compute_eligibility_traces(x, x, 0.9, 0.8)
    assert compute_eligibility_traces(x, x, 0.9, 0.8, time_dim=0).shape == (4,)


@pytest.mark.parametrize("number", [1, True, 0])
def test_integers_are_numbers(number: int) -> None:
    assert torch.equal(call(gamma=number, lambda_=number), call(gamma=float(number), lambda_=float(number)))
    assert torch.equal(call(kind="dutch", alpha=number), call(kind="dutch", alpha=float(number)))


def test_a_subclass_of_str_is_a_kind() -> None:
    class Kind(str):
        pass

    assert torch.equal(call(kind=Kind("replacing")), call(kind="replacing"))
    assert torch.equal(call(kind=Kind("accumulating")), call())


def test_kinds_and_ratios_differ() -> None:
    """Each reaches an algorithm of its own, worked out by hand."""
    half = {"gradients": torch.ones(1, 3), "dones": torch.zeros(1, 3), "gamma": 0.5, "lambda_": 1.0}
    ratios = torch.tensor([[1.0, 2.0, 4.0]])
    for options, expected in (
        ({}, [1.0, 1.5, 1.75]),
        ({"kind": "replacing"}, [1.0, 1.0, 1.0]),
        ({"kind": "dutch", "alpha": 0.5}, [1.0, 1.25, 1.3125]),
        ({"ratios": ratios}, [1.0, 3.0, 10.0]),
        ({"kind": "replacing", "ratios": ratios}, [1.0, 2.0, 4.0]),
    ):
        assert call(**half, **options).tolist() == [expected]


PROMOTIONS = [
    ({"gradients": torch.float16}, torch.float16),
    ({"gradients": torch.bfloat16, "dones": torch.float64}, torch.bfloat16),
    ({"gradients": torch.int64}, torch.float32),
    ({"gradients": torch.float16, "seed_values": torch.bfloat16}, torch.float32),
    ({"gradients": torch.float16, "seed_values": torch.int32}, torch.float32),
    ({"gradients": torch.float32, "seed_values": torch.float64}, torch.float64),
    ({"gradients": torch.float16, "ratios": torch.float32}, torch.float32),
    ({"gradients": torch.bfloat16, "ratios": torch.bfloat16}, torch.bfloat16),
    ({"gradients": torch.float32, "ratios": torch.float64}, torch.float64),
    ({"gradients": torch.float64, "ratios": torch.int64}, torch.float64),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    given = {name: torch.ones(3 if name == "seed_values" else (3, 5)).to(dtype) for name, dtype in dtypes.items()}
    assert call(**given).dtype == expected


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    gradients, dones = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < 0.2
    seed = torch.randn(shape[: dim % 3] + shape[dim % 3 + 1 :], generator=generator)
    actual = compute_eligibility_traces(gradients, dones, 0.9, 0.8, seed, time_dim=dim)
    expected = reference.compute_eligibility_traces(gradients, dones, 0.9, 0.8, seed, time_dim=dim)
    torch.testing.assert_close(actual, expected.float())


def test_features_share_flags_by_a_view() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients, dones = torch.randn(3, 7, 4, generator=generator), torch.rand(3, 7, generator=generator) < 0.3
    seed = torch.randn(3, 4, generator=generator)
    shared = dones.unsqueeze(-1).expand_as(gradients)
    assert shared.stride(-1) == 0
    ratios = torch.rand(3, 7, generator=generator)
    for options in ({}, {"ratios": ratios}):
        expanded = {name: x.unsqueeze(-1).expand_as(gradients) for name, x in options.items()}
        together = compute_eligibility_traces(gradients, shared, 0.9, 0.8, seed, **expanded)
        assert together.stride() == gradients.stride()
        apart = [
            compute_eligibility_traces(gradients[..., i], dones, 0.9, 0.8, seed[:, i], **options) for i in range(4)
        ]
        torch.testing.assert_close(together, torch.stack(apart, -1))


def test_outputs_are_laid_out_like_gradients() -> None:
    transposed = torch.ones(5, 3).t()
    assert call(gradients=transposed).stride() == transposed.stride()
    assert call(gradients=torch.ones(3, 1).expand(3, 5)).is_contiguous()
    assert call(gradients=torch.ones(3, 10)[:, ::2]).is_contiguous()


VARIANTS: list[dict[str, Any]] = [{}, {"kind": "replacing"}, {"kind": "dutch", "alpha": 0.5}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int], options: dict[str, Any]) -> None:
    x = torch.ones(shape)
    several = [options] if "alpha" in options else [options, options | {"ratios": x}]
    for dim in (0, 1):
        for each in several:
            traces = compute_eligibility_traces(x, x, 0.9, 0.8, torch.ones(shape[1 - dim]), time_dim=dim, **each)
            assert traces.shape == shape


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_inputs_are_neither_changed_nor_returned(options: dict[str, Any]) -> None:
    for width in (5, 1):
        given = {"gradients": torch.rand(3, width), "dones": torch.zeros(3, width), "seed_values": torch.rand(3)}
        if "alpha" not in options:
            given["ratios"] = torch.rand(3, width)
        before = {name: x.clone() for name, x in given.items()}
        for left_out in ("seed_values", "ratios", None):
            call(**{name: x for name, x in given.items() if name != left_out}, **options).fill_(7.0)
            assert all(torch.equal(given[name], x) for name, x in before.items())


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_traces.api.CORRECTNESS_WARNINGS", True)
    nan = torch.full((3, 5), math.nan)
    with pytest.warns(UserWarning, match="gradients: holds NaN; .* every later step") as caught:
        call(gradients=nan)
    assert caught[0].filename == __file__, "the warning points at the caller"
    with pytest.warns(UserWarning, match="seed_values: holds NaN"):
        call(seed_values=nan[:, 0])
    with pytest.warns(UserWarning, match="ratios: holds NaN"):
        call(ratios=nan)
    with pytest.warns(UserWarning, match="ratios: holds a negative number.*logarithms") as caught:
        call(ratios=-torch.ones(3, 5))
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="gradients: holds a number other than 0 and 1") as caught:
        call(gradients=torch.full((3, 5), 0.5), kind="dutch", alpha=0.5)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(seed_values=torch.zeros(3), ratios=torch.zeros(3, 5))
        call(gradients=torch.eye(3, 5), kind="dutch", alpha=0.5)
        call(gradients=torch.full((3, 5), 0.5), kind="replacing", ratios=torch.ones(3, 5, dtype=torch.uint16))
        call(gradients=torch.ones(3, 5, dtype=torch.int64))
        # There are no numbers to look at.
        call(gradients=nan.to("meta"), dones=nan.to("meta"))
        call(gradients=nan.to("meta"), dones=nan.to("meta"), ratios=nan.to("meta"))
        call(gradients=nan.to("meta"), dones=nan.to("meta"), kind="dutch", alpha=0.5)
        torch.func.vmap(lambda x: call(gradients=x))(nan.expand(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = (
        "import torch; from rl_triton_traces import compute_eligibility_traces as f; x = torch.full((1, 1), torch.nan)"
    )
    code += "; f(x, x, 1.0, 1.0)"
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: gradients: holds NaN") == warnings_shown
