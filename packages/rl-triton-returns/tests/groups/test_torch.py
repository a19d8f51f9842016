"""The whole-tensor form of group advantages against the oracle, on drawn inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_returns.groups import _torch, reference
from rl_triton_returns.groups.options import Options
from torch import Tensor


def computed(
    rewards: Tensor,
    group_ids: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    baseline: str = "mean",
    scale: str | None = "std",
    unbiased: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """compute_group_advantages by way of the function under test."""
    options = Options(baseline == "leave_one_out", scale == "std", unbiased, eps)
    of_tokens = mask is not None and mask.dim() > rewards.dim()
    counted, tokens = (None, mask) if of_tokens else (mask, None)
    return _torch.compute(rewards, group_ids, counted, tokens, options)


@st.composite
def calls(draw: st.DrawFn, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of every combination, with what is not finite in a third of the calls."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = draw(st.one_of(st.tuples(st.integers(1, 60)), st.tuples(st.integers(1, 12), st.integers(1, 12))))
    # Rewards of right and wrong answers make groups of equal ones.
    rewards = torch.randn(shape, generator=generator, dtype=dtype) * draw(st.sampled_from([1e-3, 1.0, 1e4]))
    if draw(st.booleans()):
        rewards = (rewards > 0).to(dtype) * 0.1
    if draw(st.integers(0, 2)) == 0:
        poison = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
        rewards[torch.rand(shape, generator=generator) < 0.05] = poison
    arguments: dict[str, Any] = {"rewards": rewards}
    if len(shape) == 1 or draw(st.booleans()):
        groups = draw(st.integers(1, 12))
        spread = draw(st.sampled_from([1, -(2**62) // 12]))
        arguments["group_ids"] = torch.randint(0, groups, shape, generator=generator) * spread
    masked = draw(st.sampled_from([None, shape, (*shape, 3)]))
    if masked is not None:
        arguments["mask"] = torch.rand(masked, generator=generator) < 0.6
    arguments["baseline"] = draw(st.sampled_from(["mean", "leave_one_out"]))
    arguments["scale"] = draw(st.sampled_from(["std", None]))
    arguments["unbiased"] = draw(st.booleans())
    arguments["eps"] = draw(st.sampled_from([0.0, 1e-6, 1e-4]))
    return arguments


@pytest.fixture(params=["in order", "by a scan"], autouse=True)
def summed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Sums as they are made on the CPU, and as they are made where additions come in any order."""
    devices = {"cpu"} if request.param == "in order" else set()
    with mock.patch.object(_torch, "ADD_IN_ORDER", devices):
        yield


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls())
def test_against_the_oracle(arguments: dict[str, Any]) -> None:
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, Tensor)}
    expected = reference.compute_group_advantages(**arguments)
    loop = reference.compute_group_advantages(**arguments, dtype=torch.float32)
    assert_within_rule(computed(**arguments), expected, loop, torch.float32, time_dim=0)
    for name, x in before.items():
        torch.testing.assert_close(arguments[name], x, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls(torch.float64))
def test_float64_against_the_oracle(arguments: dict[str, Any]) -> None:
    expected = reference.compute_group_advantages(**arguments)
    assert_within_rule(computed(**arguments), expected, expected, torch.float64, time_dim=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_large_offset_costs_no_digits(sign: float) -> None:
    rewards = sign * torch.tensor([1e8, 1e8 + 8, 1e8 + 16, 1e8 + 24])
    ids = torch.zeros(4, dtype=torch.int64)
    assert computed(rewards, ids, scale=None).tolist() == [-12.0 * sign, -4.0 * sign, 4.0 * sign, 12.0 * sign]
    std = math.sqrt((12**2 + 4**2) * 2 / 3)
    assert computed(rewards, ids, eps=0.0)[3].item() == pytest.approx(sign * 12 / std, rel=1e-7)
