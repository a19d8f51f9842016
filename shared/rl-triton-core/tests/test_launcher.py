"""Launching: arguments in the kernel's order, and no call that is taken for another."""

from __future__ import annotations

import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core import api, segmented_scan
from rl_triton_core.engine import direct_launch, dispatch, launcher, plan, prepared
from rl_triton_core.engine.algorithm import FRACTION, MASK, Field
from rl_triton_core.engine.direct_launch import make_shortcut
from rl_triton_core.engine.launcher import KernelCall
from rl_triton_core.engine.precision import float32_parts, log2_of
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_device", lambda device: plan.Device(132, 32))


def arguments() -> tuple[Any, ...]:
    return (torch.ones(4, 16), torch.ones(4, 16), None, torch.ones(4))


def prepared_call(given: tuple[Any, ...]) -> KernelCall:
    return KernelCall(api._FORWARD, given[:3], given[3:], 1)


def test_arguments_come_in_the_order_of_the_kernel() -> None:
    from rl_triton_core.engine import kernels

    call = prepared_call(arguments())
    names = list(inspect.signature(kernels.scan.fn).parameters)
    assert [*names[-len(call.constants) - 1 : -1], names[-1]] == [*call.constants, "SUMMARISE"]
    passed = ["pointers", "outer_strides", "inner_strides", "inner_sizes", "time_strides", "action_strides"]
    passed += ["summaries", "scalars", "log2_decay", "inverse_length", "n_rows", "n_units", "n_groups"]
    passed += ["rows_per_tile", "n_action_units", "n_sequences"]
    assert names[: -len(call.constants) - 1] == passed
    assert len(call.layout_arguments) == 5
    assert len(call.size_arguments) == 7


@pytest.mark.parametrize("number", [0.0, 1.0, 0.99, 0.95, 0.99 * 0.95, 1 / 3, math.pi, 1e-20, 1 - 2**-50])
def test_three_floats_carry_a_double(number: float) -> None:
    parts = float32_parts(number)
    assert sum(parts[::-1]) == number
    assert all(float(torch.tensor(part, dtype=torch.float32)) == part for part in parts)


@pytest.mark.parametrize("number", [math.inf, 1e39, 1.7e308])
def test_what_float32_cannot_hold_is_infinite(number: float) -> None:
    assert float32_parts(number) == (math.inf, 0.0, 0.0)


def test_the_logarithm_of_no_decay_is_finite() -> None:
    assert log2_of(0.5) == -1.0
    assert log2_of(1.0) == 0.0
    assert math.isfinite(log2_of(0.0))
    assert 2.0 ** log2_of(0.0) == 0.0


class Recorded:
    """A direct launch that launches nothing."""

    def __init__(self) -> None:
        self.launches = 0

    def launch(self, tensors: Any, scalars: Any, log2_decay: float) -> bool:
        self.launches += 1
        return True


def a_shortcut() -> tuple[Callable[[Any, Any], Any], Recorded]:
    given = arguments()
    call, recorded = prepared_call(given), Recorded()
    call.direct = recorded  # type: ignore[assignment]
    assert call.numbers(given) is not None
    shortcut = make_shortcut(call, given, 1)
    assert shortcut is not None
    return shortcut, recorded


def test_a_shortcut_takes_what_is_alike() -> None:
    shortcut, recorded = a_shortcut()
    assert shortcut(arguments(), 1) is not None
    assert recorded.launches == 1


def test_a_shortcut_makes_every_output() -> None:
    given, recorded = arguments(), Recorded()
    call = KernelCall(dataclasses.replace(api._FORWARD, outputs=2), given[:3], given[3:], 1)
    call.direct = recorded  # type: ignore[assignment]
    assert call.numbers(given) is not None
    shortcut = make_shortcut(call, given, 1)
    assert shortcut is not None
    first, second = shortcut(arguments(), 1)
    assert first.shape == second.shape == (4, 16)
    assert first.data_ptr() != second.data_ptr()
    assert recorded.launches == 1


def test_a_call_with_a_mask_leaves_the_maps_of_others_alone() -> None:
    inputs, decays, resets = api._FORWARD.fields
    fields = (inputs, dataclasses.replace(decays, numbers=FRACTION), resets, MASK)
    one_decay = dataclasses.replace(api._FORWARD, fields=fields, uniform_decay=lambda numbers: numbers[0])
    steps = torch.ones(4, 16)

    def maps_of(mask: Tensor | None) -> dict[str, Any]:
        constants = KernelCall(one_decay, (steps, 0.5, None, mask), (None,), 1).constants
        return {name: constants[name] for name in ("LEAF", "EXTEND")}

    before = maps_of(None)
    assert maps_of(steps > 0) != before
    assert maps_of(None) == before


UNLIKE: dict[str, Callable[[list[Any]], Any]] = {
    "shape": lambda a: a.__setitem__(0, torch.ones(4, 15)),
    "strides": lambda a: a.__setitem__(1, torch.ones(16, 4).t()),
    "an expanded view": lambda a: a.__setitem__(1, torch.ones(4, 1).expand(4, 16)),
    "dtype": lambda a: a.__setitem__(0, torch.ones(4, 16, dtype=torch.float64)),
    "device": lambda a: a.__setitem__(1, torch.ones(4, 16, device="meta")),
    "one more": lambda a: a.__setitem__(2, torch.ones(4, 16)),
    "one less": lambda a: a.__setitem__(3, None),
    "a gradient": lambda a: a.__setitem__(0, torch.ones(4, 16, requires_grad=True)),
    "a parameter": lambda a: a.__setitem__(0, torch.nn.Parameter(torch.ones(4, 16))),
    "a number": lambda a: a.__setitem__(1, 0.5),
    "a negated view": lambda a: a.__setitem__(0, torch._neg_view(torch.ones(4, 16))),
    "a row value's stride": lambda a: a.__setitem__(3, torch.ones(8)[::2]),
}


@pytest.mark.parametrize("change", UNLIKE)
def test_a_shortcut_refuses_what_is_not(change: str) -> None:
    shortcut, recorded = a_shortcut()
    given = list(arguments())
    UNLIKE[change](given)
    assert shortcut(tuple(given), 1) is None
    assert shortcut(arguments(), 0) is None
    assert recorded.launches == 0


class SomeDispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class SomeFunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [SomeDispatchMode, SomeFunctionMode])
def test_a_shortcut_steps_aside_for_modes(mode: Any) -> None:
    shortcut, recorded = a_shortcut()
    given = arguments()
    with mode():
        assert shortcut(given, 1) is None
    assert recorded.launches == 0


def test_a_shortcut_steps_aside_for_transforms() -> None:
    shortcut, recorded = a_shortcut()
    given = arguments()

    def inside(x: Tensor) -> Tensor:
        assert shortcut((x, *given[1:]), 1) is None
        return x

    torch.func.vmap(inside)(torch.ones(2, 4, 16))
    assert recorded.launches == 0


def test_a_shortcut_steps_aside_for_tangents() -> None:
    shortcut, recorded = a_shortcut()
    given = arguments()
    with torch.autograd.forward_ad.dual_level():
        assert shortcut(given, 1) is None
    assert recorded.launches == 0


def test_what_may_want_a_gradient_has_no_shortcut() -> None:
    inputs, *others = arguments()
    given = (inputs.requires_grad_(), *others)
    with torch.no_grad():
        assert make_shortcut(prepared_call(given), given, 1) is None


def test_calls_that_take_turns_keep_their_shortcuts(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(call: KernelCall, given: tuple[Any, ...], time_dim: int) -> Any:
        made.append(call)
        return make_shortcut(call, given, time_dim)

    monkeypatch.setattr(dispatch, "make_shortcut", counted)
    algorithm = dataclasses.replace(api._FORWARD)
    given = arguments()
    calls = [prepared_call(given), prepared_call(given)]
    for call in calls:
        call.direct = Recorded()  # type: ignore[assignment]
    for _ in range(3):
        for call in calls:
            dispatch._remember(algorithm, call, given, 1)
            assert algorithm.shortcut["last"] is call.shortcut
    assert made == calls
    # Asked again right after it was asked: it refused what the key found, so it is made anew.
    dispatch._remember(algorithm, calls[1], given, 1)
    assert made == [*calls, calls[1]]


def test_the_key_has_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "is_watched", lambda: False)

    def key(given: tuple[Any, ...], time_dim: Any = 1, algorithm: Any = api._FORWARD) -> Any:
        monkeypatch.setattr(Tensor, "is_cuda", True, raising=False)
        try:
            return prepared.key_of(algorithm, given, time_dim)
        finally:
            monkeypatch.undo()
            monkeypatch.setattr(dispatch, "is_watched", lambda: False)

    usual = key(arguments())
    assert usual is not None
    assert key(arguments()) == usual
    for change, apply in UNLIKE.items():
        given = list(arguments())
        apply(given)
        assert key(tuple(given)) != usual, change
    assert key(arguments(), 0) != usual
    assert key(arguments(), True) != usual
    assert key(arguments(), algorithm=api._BACKWARD) != usual


def test_an_unknown_triton_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_launch, "_triton_version", lambda: (9, 0))
    direct_launch.launcher_is_known.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            assert not direct_launch.launcher_is_known()
            assert not direct_launch.launcher_is_known()
        assert ["ordinary, slower launch" in str(warning.message) for warning in raised] == [True]
    finally:
        direct_launch.launcher_is_known.cache_clear()


def test_numbers_out_of_range_are_not_launched() -> None:
    inputs, _, resets = api._FORWARD.fields
    one_decay = dataclasses.replace(api._FORWARD, fields=(inputs, Field("decays", numbers=FRACTION), resets))
    given = (torch.ones(4, 16), 1.5, None, torch.ones(4))
    call = KernelCall(one_decay, given[:3], given[3:], 1)
    assert call(given) is None
    assert call.numbers((given[0], 0.5, *given[2:])) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_derived_numbers_come_after_those_of_the_fields(dtype: torch.dtype) -> None:
    inputs, _, resets = api._FORWARD.fields
    one_decay = Field("decays", required=True, numbers=FRACTION)
    algorithm = dataclasses.replace(
        api._FORWARD, fields=(inputs, one_decay, resets), derived_numbers=lambda numbers: (1.0 - numbers[0],)
    )
    given = (torch.ones(4, 16, dtype=dtype), 0.9999, None, torch.ones(4, dtype=dtype))
    known = KernelCall(algorithm, given[:3], given[3:], 1).numbers(given)
    assert known is not None
    # Derived before it is rounded, not from what is rounded.
    parts = float32_parts if dtype == torch.float64 else lambda number: (number,)
    assert known[1] == (parts(0.9999), parts(1.0 - 0.9999))
    per_step = (given[0], torch.ones(4, 16, dtype=dtype), *given[2:])
    known = KernelCall(algorithm, per_step[:3], per_step[3:], 1).numbers(per_step)
    assert known is not None
    assert known[1] == (parts(0.0), parts(1.0))


def test_prepared_calls_are_bounded() -> None:
    assert prepared.MOST_PREPARED_CALLS <= 4096
    assert len(prepared._prepared_calls) <= prepared.MOST_PREPARED_CALLS
    assert segmented_scan(torch.ones(2, 3), torch.ones(2, 3)).shape == (2, 3)
