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
from rl_triton_core.boundaries import FLAG_CONVENTIONS
from rl_triton_prefix import compute_episodic_prefix_sum, reference
from rl_triton_prefix.api import _PREFIX_SUMS
from torch import Tensor

BOTH = pytest.mark.parametrize("boundary", FLAG_CONVENTIONS)


def call(**changes: Any) -> Tensor:
    """A good call of 3 environments and 5 steps, with changes."""
    good: dict[str, Any] = {"inputs": torch.ones(3, 5), "dones": torch.zeros(3, 5)}
    return compute_episodic_prefix_sum(**(good | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_episodic_prefix_sum).parameters
    assert list(parameters) == ["inputs", "dones", "seed_values", "boundary", "cu_seqlens", "time_dim", "out"]
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {"seed_values": None, "boundary": "ends_at", "cu_seqlens": None, "time_dim": 1, "out": None}
    assert [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY] == ["cu_seqlens", "time_dim", "out"]


def test_each_flag_convention_is_an_algorithm_of_its_own_name() -> None:
    assert tuple(_PREFIX_SUMS) == FLAG_CONVENTIONS
    # Prepared calls are told apart by it.
    assert len({(algorithm.name, algorithm.reverse) for algorithm in _PREFIX_SUMS.values()}) == 2


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"inputs": [[1.0]]}, TypeError, r"inputs: expected a torch.Tensor, got list"),
    ({"dones": None}, TypeError, r"dones: expected a torch.Tensor, got None"),
    ({"dones": False}, TypeError, r"dones: expected a torch.Tensor, got bool"),
    ({"seed_values": 0.0}, TypeError, r"seed_values: expected a torch.Tensor, got float"),
    ({"inputs": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"inputs: expected float16.*complex64"),
    ({"dones": torch.ones(3, 5, dtype=torch.complex64)}, TypeError, r"dones: expected flags"),
    ({"seed_values": torch.zeros(3).to(torch.float8_e4m3fn)}, TypeError, r"seed_values: expected .*float8"),
    ({"inputs": torch.ones(3, 5).to_sparse()}, TypeError, r"inputs: expected a dense tensor"),
    ({"dones": torch.zeros(5, 3)}, ValueError, r"dones: expected shape \(3, 5\) like inputs, got \(5, 3\)"),
    ({"dones": torch.zeros(3)}, ValueError, r"dones: expected shape \(3, 5\).*expand_as"),
    ({"inputs": torch.ones(3, 5, 2)}, ValueError, r"dones: expected shape \(3, 5, 2\).*expand_as"),
    ({"seed_values": torch.zeros(4)}, ValueError, r"seed_values: expected shape \(3,\).*got \(4,\)"),
    ({"seed_values": torch.zeros(5)}, ValueError, r"seed_values: .*pass time_dim=0"),
    ({"seed_values": torch.zeros(3, 1)}, ValueError, r"seed_values: expected shape \(3,\)"),
    ({"boundary": "ends"}, ValueError, r"boundary: expected 'ends_at' or 'starts_at', got 'ends'"),
    ({"boundary": None}, TypeError, r"boundary: expected 'ends_at' or 'starts_at', got NoneType"),
    ({"boundary": 1}, TypeError, r"boundary: expected 'ends_at' or 'starts_at', got int"),
    ({"boundary": torch.zeros(3)}, TypeError, r"boundary: expected 'ends_at' or 'starts_at', got Tensor"),
    ({"boundary": ["ends_at"]}, TypeError, r"boundary: expected 'ends_at' or 'starts_at', got list"),
    ({"time_dim": 2}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": -3}, ValueError, r"time_dim: expected an axis"),
    ({"time_dim": 1.0}, TypeError, r"time_dim: expected an int, got float"),
    ({"inputs": torch.ones(())}, ValueError, r"inputs: expected at least one dimension"),
    ({"dones": torch.zeros(3, 5, device="meta")}, RuntimeError, r"dones: expected a tensor on cpu.*meta"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


def test_a_numpy_array_is_told_how_to_become_a_tensor() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"inputs: .*ndarray.*torch.from_numpy"):
        call(inputs=numpy.ones((3, 5)))


def test_one_trajectory_is_told_its_time_axis() -> None:
    x = torch.ones(4)
    with pytest.raises(ValueError, match="time_dim=0"):
        compute_episodic_prefix_sum(x, x)
    assert compute_episodic_prefix_sum(x, x, time_dim=0).shape == (4,)


PROMOTIONS = [
    ({"inputs": torch.float16}, torch.float16),
    ({"inputs": torch.bfloat16, "dones": torch.float64}, torch.bfloat16),
    ({"inputs": torch.int64}, torch.float32),
    ({"inputs": torch.bool}, torch.float32),
    ({"inputs": torch.float16, "seed_values": torch.bfloat16}, torch.float32),
    ({"inputs": torch.float16, "seed_values": torch.int32}, torch.float32),
    ({"inputs": torch.float32, "seed_values": torch.float64}, torch.float64),
]


@pytest.mark.parametrize(("dtypes", "expected"), PROMOTIONS)
def test_promotion(dtypes: dict[str, torch.dtype], expected: torch.dtype) -> None:
    given = {name: torch.ones(3 if name == "seed_values" else (3, 5)).to(dtype) for name, dtype in dtypes.items()}
    assert call(**given).dtype == expected


@BOTH
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_any_axis_can_be_time(dim: int, boundary: str) -> None:
    shape = (4, 5, 3)
    generator = torch.Generator().manual_seed(0)
    inputs, dones = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < 0.2
    seed = torch.randn(shape[: dim % 3] + shape[dim % 3 + 1 :], generator=generator)
    actual = compute_episodic_prefix_sum(inputs, dones, seed, boundary, time_dim=dim)
    expected = reference.compute_episodic_prefix_sum(inputs, dones, seed, boundary, time_dim=dim)
    torch.testing.assert_close(actual, expected.float())


@BOTH
def test_features_share_flags_by_a_view(boundary: str) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs, dones = torch.randn(3, 7, 4, generator=generator), torch.rand(3, 7, generator=generator) < 0.3
    seed = torch.randn(3, 4, generator=generator)
    shared = dones.unsqueeze(-1).expand_as(inputs)
    assert shared.stride(-1) == 0
    together = compute_episodic_prefix_sum(inputs, shared, seed, boundary)
    assert together.stride() == inputs.stride()
    apart = [compute_episodic_prefix_sum(inputs[..., i], dones, seed[:, i], boundary) for i in range(4)]
    torch.testing.assert_close(together, torch.stack(apart, -1))


def test_outputs_are_laid_out_like_inputs() -> None:
    transposed = torch.ones(5, 3).t()
    assert call(inputs=transposed).stride() == transposed.stride()
    assert call(inputs=torch.ones(3, 1).expand(3, 5)).is_contiguous()
    assert call(inputs=torch.ones(3, 10)[:, ::2]).is_contiguous()


@BOTH
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_tensors_give_empty_results(shape: tuple[int, int], boundary: str) -> None:
    x = torch.ones(shape)
    for dim in (0, 1):
        seed = torch.ones(shape[1 - dim])
        assert compute_episodic_prefix_sum(x, x, seed, boundary, time_dim=dim).shape == shape


@BOTH
def test_inputs_are_neither_changed_nor_returned(boundary: str) -> None:
    for width in (5, 1):
        given = {"inputs": torch.rand(3, width), "dones": torch.ones(3, width) != 1, "seed_values": torch.rand(3)}
        before = {name: x.clone() for name, x in given.items()}
        for left_out in ("seed_values", None):
            kept = {name: x for name, x in given.items() if name != left_out}
            call(**kept, boundary=boundary).fill_(7.0)
            assert all(torch.equal(given[name], x) for name, x in before.items())


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_prefix.api.CORRECTNESS_WARNINGS", True)
    nan = torch.full((3, 5), math.nan)
    with pytest.warns(UserWarning, match="inputs: holds NaN; .* every later step") as caught:
        call(inputs=nan)
    assert caught[0].filename == __file__, "the warning points at the caller"
    with pytest.warns(UserWarning, match="seed_values: holds NaN"):
        call(seed_values=nan[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(seed_values=torch.zeros(3))
        call(inputs=torch.ones(3, 5, dtype=torch.int64))
        # There are no numbers to look at.
        call(inputs=nan.to("meta"), dones=nan.to("meta"))
        torch.func.vmap(lambda x: call(inputs=x))(nan.expand(2, 3, 5))


@pytest.mark.parametrize(("setting", "warnings_shown"), [("1", 1), ("0", 0)])
def test_the_environment_turns_correctness_warnings_on(setting: str, warnings_shown: int) -> None:
    code = (
        "import torch; from rl_triton_prefix import compute_episodic_prefix_sum as f; x = torch.full((1, 1), torch.nan)"
    )
    environment = os.environ | {"RL_TRITON_CORRECTNESS_WARNINGS": setting, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code + "; f(x, x)"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert shown.stderr.count("UserWarning: inputs: holds NaN") == warnings_shown
