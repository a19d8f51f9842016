"""Bad calls: one clear line that names the argument, what was expected and what came."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from rl_triton_core import api, segmented_scan
from rl_triton_core.engine.algorithm import CLIP, FRACTION, Algorithm, Field
from rl_triton_core.engine.arguments import check_arguments, check_choice, check_exclusive, check_number

X = torch.zeros(2, 5)


class NotATensor:
    """Stands for an array of another library."""


NotATensor.__module__ = "numpy"


@pytest.mark.parametrize(
    ("changed", "error", "parts"),
    [
        # not a tensor
        ({"inputs": [[1.0]]}, TypeError, ("inputs", "torch.Tensor", "list")),
        ({"inputs": None}, TypeError, ("inputs", "torch.Tensor", "None")),
        ({"decays": 0.5}, TypeError, ("decays", "torch.Tensor", "float")),
        ({"decays": None}, TypeError, ("decays", "torch.Tensor", "None")),
        ({"resets": [0, 1]}, TypeError, ("resets", "torch.Tensor", "list")),
        ({"resets": NotATensor()}, TypeError, ("resets", "torch.Tensor", "NotATensor", "from_numpy")),
        ({"initial": 0.0}, TypeError, ("initial", "torch.Tensor", "float")),
        # not a real number
        ({"inputs": X.to(torch.complex64)}, TypeError, ("inputs", "float32", "complex64")),
        ({"decays": X.to(torch.float8_e5m2)}, TypeError, ("decays", "float32", "float8_e5m2")),
        ({"resets": X.to(torch.complex64)}, TypeError, ("resets", "real", "complex64")),
        ({"initial": X[:, 0].to(torch.complex64)}, TypeError, ("initial", "float32", "complex64")),
        # not dense
        ({"inputs": X.to_sparse()}, TypeError, ("inputs", "dense", "sparse_coo", "to_dense()")),
        ({"resets": X.to_sparse()}, TypeError, ("resets", "dense", "sparse_coo")),
        # shapes
        ({"decays": torch.zeros(2, 4)}, ValueError, ("decays", "(2, 5)", "(2, 4)", "inputs")),
        ({"decays": torch.zeros(5)}, ValueError, ("decays", "(2, 5)", "(5,)", "expand_as")),
        ({"resets": torch.zeros(2, 1)}, ValueError, ("resets", "(2, 5)", "(2, 1)")),
        ({"resets": torch.zeros(2, 5, 1)}, ValueError, ("resets", "(2, 5)", "(2, 5, 1)", "expand_as")),
        ({"initial": torch.zeros(3)}, ValueError, ("initial", "(2,)", "(3,)")),
        ({"initial": torch.zeros(5)}, ValueError, ("initial", "(2,)", "(5,)", "time_dim=0")),
        ({"initial": torch.zeros(2), "time_dim": 0}, ValueError, ("initial", "(5,)", "(2,)")),
        ({"initial": torch.zeros(2, 1)}, ValueError, ("initial", "(2,)", "(2, 1)")),
        # the time axis
        ({"inputs": torch.zeros(5), "decays": torch.zeros(5)}, ValueError, ("time_dim", "inputs", "time_dim=0")),
        ({"inputs": torch.zeros(()), "decays": torch.zeros(())}, ValueError, ("inputs", "one dimension", "()")),
        ({"time_dim": 2}, ValueError, ("time_dim", "[-2, 1]", "2")),
        ({"time_dim": -3}, ValueError, ("time_dim", "[-2, 1]", "-3")),
        ({"time_dim": 1.0}, TypeError, ("time_dim", "int", "float")),
        ({"time_dim": True}, TypeError, ("time_dim", "int", "bool")),
        ({"time_dim": None}, TypeError, ("time_dim", "int", "NoneType")),
        ({"time_dim": [1]}, TypeError, ("time_dim", "int", "list")),
        # devices
        ({"decays": X.to("meta")}, RuntimeError, ("decays", "cpu", "meta", "inputs")),
        ({"resets": X.to("meta")}, RuntimeError, ("resets", "cpu", "meta")),
        ({"initial": X[:, 0].to("meta")}, RuntimeError, ("initial", "cpu", "meta")),
        ({"inputs": X.to("meta")}, RuntimeError, ("decays", "meta", "cpu")),
    ],
    ids=lambda value: None if isinstance(value, (type, tuple)) else "-".join(value),
)
def test_a_bad_call(changed: dict[str, Any], error: type[Exception], parts: tuple[str, ...]) -> None:
    arguments: dict[str, Any] = {"inputs": X, "decays": X} | changed
    with pytest.raises(error) as caught:
        segmented_scan(**arguments)
    assert type(caught.value) is error
    message = str(caught.value)
    assert message.startswith(parts[0])
    for part in parts:
        assert part in message
    assert "\n" not in message


REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
UNSIGNED = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", [*REAL, *UNSIGNED, *SIGNED])
def test_every_real_dtype_is_accepted(dtype: torch.dtype) -> None:
    ones, zeros = torch.ones(2, 5), torch.zeros(2, 5)
    counted = dtype if dtype.is_floating_point else torch.float32
    y = segmented_scan(ones.to(dtype), ones.to(dtype), resets=zeros.to(dtype), initial=ones[:, 0].to(dtype))
    assert y.dtype == counted
    assert y.tolist() == [[2.0, 3.0, 4.0, 5.0, 6.0]] * 2


def test_a_mistake_is_found_before_any_work() -> None:
    inputs = torch.zeros(2, 5)
    with pytest.raises(ValueError, match="initial"):
        segmented_scan(inputs, inputs, initial=torch.zeros(3))
    assert inputs.count_nonzero() == 0


GAMMA, RHO = Field("gamma", numbers=FRACTION), Field("rho_bar", numbers=CLIP, per_step=False)


@pytest.mark.parametrize(
    ("field", "number"), [*((GAMMA, n) for n in (0, 1, 0.5, True)), *((RHO, n) for n in (5e-324, 1, 3.5, math.inf))]
)
def test_numbers_in_range(field: Field, number: Any) -> None:
    checked = check_number(field, number)
    assert type(checked) is float
    assert checked == number


@pytest.mark.parametrize("number", [-0.1, 1.0001, math.inf, math.nan, 2, 10**400])
def test_no_fractions(number: Any) -> None:
    with pytest.raises(ValueError, match=r"^gamma: expected a number in \[0, 1\], got "):
        check_number(GAMMA, number)


@pytest.mark.parametrize("number", [0, -1.0, -math.inf, math.nan])
def test_no_clips(number: Any) -> None:
    with pytest.raises(ValueError, match=r"^rho_bar: expected a positive number, got "):
        check_number(RHO, number)


def test_exclusive_arguments() -> None:
    check_exclusive(last_value=None, next_values=None)
    check_exclusive(last_value=X, next_values=None)
    with pytest.raises(ValueError, match="last_value and next_values: expected at most one"):
        check_exclusive(bootstrap_values=None, last_value=X, next_values=X)


def test_one_of_several_names() -> None:
    check_choice("kind", "b", ("a", "b", "c"))
    check_choice("kind", "b", {"a": 1, "b": 2})
    check_choice("kind", None, ("a", None), takes_none=True)
    bad: tuple[tuple[Any, Any, dict[str, Any], type[Exception], str], ...] = (
        ("d", ("a", "b", "c"), {}, ValueError, "'a', 'b' or 'c', got 'd'"),
        ("d", ("a", None), {"takes_none": True}, ValueError, "'a' or None, got 'd'"),
        (None, ("a", "b"), {"takes_none": True}, ValueError, "'a' or 'b', got None"),
        (None, ("a", "b"), {}, TypeError, "'a' or 'b', got NoneType"),
        (1, ("a", None), {"takes_none": True}, TypeError, "'a' or None, got int"),
        # A type without a hash, and a container that looks names up by theirs.
        (["a"], {"a": 1, "b": 2}, {}, TypeError, "'a' or 'b', got list"),
    )
    for value, choices, options, error, message in bad:
        with pytest.raises(error) as caught:
            check_choice("kind", value, choices, **options)
        assert str(caught.value) == f"kind: expected {message}"


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        (RHO, torch.tensor(1.0), "; convert it with float()"),
        (RHO, X, "; it is one number for all steps"),
        (RHO, "1.0", ""),
    ],
    ids=["one number", "a number per step", "no number"],
)
def test_what_is_one_number_only(field: Field, value: Any, hint: str) -> None:
    algorithm = dataclasses.replace(api._FORWARD, fields=(*api._FORWARD.fields, field))
    with pytest.raises(TypeError) as caught:
        check_arguments(algorithm, (X, X, None, value), (None,), 1)
    assert str(caught.value) == f"rho_bar: expected a float, got {type(value).__name__}{hint}"


WITH_ACTIONS = Algorithm(
    name="with_actions",
    reverse=True,
    fields=(Field("rewards", required=True), Field("policy", wide=True), Field("actions", index=True)),
    row_fields=(Field("last_policy", wide=True),),
    outputs=1,
    load_tile=lambda: pytest.fail("loaded"),
    coefficients=lambda *arguments: pytest.fail("called"),
    emit=lambda *arguments: pytest.fail("called"),
)


@pytest.mark.parametrize(
    ("policy", "last_policy"), [((2, 5, 3), None), ((2, 5, 3), (2, 3)), (None, (2, 1)), ((2, 5, 1), (2, 1))]
)
def test_a_wide_field_has_one_more_axis(policy: Any, last_policy: Any) -> None:
    given = [None if shape is None else torch.zeros(shape) for shape in (policy, last_policy)]
    checked, checked_rows, dim = check_arguments(WITH_ACTIONS, (X, given[0], X.long()), (given[1],), 1)
    assert [checked[1], *checked_rows] == given
    assert dim == 1


@pytest.mark.parametrize(
    ("policy", "actions", "last_policy", "error", "message"),
    [
        (X, None, None, ValueError, r"policy: expected shape \(2, 5, A\), like rewards with .* got \(2, 5\)"),
        (torch.zeros(5, 2, 3), None, None, ValueError, r"policy: expected shape \(2, 5, A\)"),
        (torch.zeros(2, 5, 0), None, None, ValueError, r"policy: expected at least one action .* \(2, 5, 0\)"),
        (torch.zeros(2, 5, 3), None, torch.zeros(2, 4), ValueError, r"last_policy: .* 3 actions like policy, got 4"),
        (None, None, torch.zeros(5, 3), ValueError, r"last_policy: expected shape \(2, A\), .* without its time axis"),
        (None, None, torch.zeros(()), ValueError, r"last_policy: expected shape \(2, A\).* got \(\)"),
        (None, X, None, TypeError, r"actions: expected an integer dtype, got torch.float32"),
        (None, X.long()[0], None, ValueError, r"actions: expected shape \(2, 5\) like rewards"),
    ],
)
def test_a_bad_call_with_actions(policy: Any, actions: Any, last_policy: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        check_arguments(WITH_ACTIONS, (X, policy, actions), (last_policy,), 1)
