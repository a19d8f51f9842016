"""What holds of V-trace whatever the inputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_vtrace import compute_vtrace
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])
clips = st.sampled_from([0.5, 1.0, 2.0, math.inf])


def drawn(size: tuple[int, int, int]) -> dict[str, Any]:
    """The per-step arguments, and a last value, in float64."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    arguments: dict[str, Any] = {name: numbers(rows, steps) for name in ("rewards", "values")}
    arguments |= {name: 0.5 * numbers(rows, steps) for name in ("log_pi_target", "log_pi_behavior")}
    arguments["terminateds"] = torch.rand(rows, steps, generator=generator) < 0.1
    return arguments | {"last_value": numbers(rows)}


def changed(arguments: dict[str, Any], change: Any) -> dict[str, Any]:
    """The per-step arguments, each changed."""
    return {name: change(x) for name, x in arguments.items() if name != "last_value"}


@given(sizes, shares, shares, st.sampled_from([1.0, 3.0, math.inf]))
def test_equal_policies_are_gae(size: tuple[int, int, int], gamma: float, lambda_: float, clip: float) -> None:
    arguments = drawn(size)
    arguments["log_pi_target"] = arguments["log_pi_behavior"]
    rewards, values, ended = (arguments[name] for name in ("rewards", "values", "terminateds"))
    following = torch.cat([values[:, 1:], arguments["last_value"][:, None]], 1)
    gae, state = torch.empty_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        ahead = gamma * following[:, t] + gamma * lambda_ * state
        state = rewards[:, t] - values[:, t] + torch.where(ended[:, t], 0.0, ahead)
        gae[:, t] = state
    targets, advantages = compute_vtrace(**arguments, gamma=gamma, lambda_=lambda_, rho_bar=clip, c_bar=clip)
    torch.testing.assert_close(targets - values, gae)
    torch.testing.assert_close(advantages, gae)


@given(sizes, shares, st.sampled_from([None, math.inf]))
def test_without_clips_targets_are_importance_weighted(
    size: tuple[int, int, int], gamma: float, no_clip: float | None
) -> None:
    arguments = drawn((size[0], min(size[1], 20), size[2]))
    rewards, values, ended = (arguments[name] for name in ("rewards", "values", "terminateds"))
    ratio = (arguments["log_pi_target"] - arguments["log_pi_behavior"]).exp()
    following = torch.cat([values[:, 1:], arguments["last_value"][:, None]], 1)
    delta = rewards + gamma * torch.where(ended, 0.0, following) - values
    expected = values.clone()
    for start in range(rewards.shape[1]):
        weight = torch.ones_like(values[:, 0])
        for t in range(start, rewards.shape[1]):
            # The product of all ratios from the first step on, and of the discounts between.
            weight = weight * ratio[:, t] * (gamma if t > start else 1.0)
            expected[:, start] += weight * delta[:, t]
            weight = torch.where(ended[:, t], 0.0, weight)
    targets, _ = compute_vtrace(**arguments, gamma=gamma, rho_bar=no_clip, c_bar=no_clip)
    torch.testing.assert_close(targets, expected)


@given(sizes, shares, clips, clips, clips, st.sampled_from([0.0, 0.3, 1.0]))
def test_a_leak_is_between_clips_and_none(
    size: tuple[int, int, int], gamma: float, rho_bar: float, c_bar: float, pg_rho_bar: float, leak: float
) -> None:
    """Without traces both outputs are linear in the weights, and so in the leak."""
    arguments = drawn(size) | {"gamma": gamma, "lambda_": 0.0}
    bounds = {"rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar}
    leaking = compute_vtrace(**arguments, **bounds, leak=leak)
    clipped = compute_vtrace(**arguments, **bounds)
    unclipped = compute_vtrace(**arguments, rho_bar=None, c_bar=None)
    for x, y, z in zip(leaking, clipped, unclipped, strict=True):
        torch.testing.assert_close(x, leak * z + (1 - leak) * y)


@given(sizes, shares, clips, clips, clips)
def test_at_lambda_one_advantages_are_one_step_ahead_of_the_targets(
    size: tuple[int, int, int], gamma: float, rho_bar: float, c_bar: float, pg_rho_bar: float
) -> None:
    arguments = drawn(size)
    ratio = (arguments["log_pi_target"] - arguments["log_pi_behavior"]).exp()
    targets, advantages = compute_vtrace(**arguments, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar, pg_rho_bar=pg_rho_bar)
    q = torch.cat([targets[:, 1:], arguments["last_value"][:, None]], 1)
    q = torch.where(arguments["terminateds"], 0.0, q)
    expected = ratio.clamp(max=pg_rho_bar) * (arguments["rewards"] + gamma * q - arguments["values"])
    torch.testing.assert_close(advantages, expected)


@given(sizes, shares, shares, st.data())
def test_a_boundary_separates(size: tuple[int, int, int], gamma: float, lambda_: float, data: st.DataObject) -> None:
    arguments = drawn(size)
    last_value = arguments["last_value"]
    end = data.draw(st.integers(1, size[1] - 1))
    options = {"gamma": gamma, "lambda_": lambda_, "pg_rho_bar": data.draw(clips)}
    arguments["terminateds"][:, end - 1] = True
    together = compute_vtrace(**arguments, **options)
    before = compute_vtrace(**changed(arguments, lambda x: x[:, :end]), **options)
    after = compute_vtrace(**changed(arguments, lambda x: x[:, end:]), last_value=last_value, **options)
    for whole, first, second in zip(together, before, after, strict=True):
        torch.testing.assert_close(whole, torch.cat([first, second], 1))

    # A truncation is the end of a window: the bootstrap value takes the place of the last value.
    arguments["terminateds"][:, end - 1] = False
    truncateds = torch.zeros_like(arguments["terminateds"])
    truncateds[:, end - 1] = True
    bootstrap_values = torch.zeros_like(arguments["values"])
    bootstrap_values[:, end - 1], bootstrap_values[:, -1] = 3.0 * last_value, last_value
    per_step = changed(arguments, lambda x: x)
    together = compute_vtrace(**per_step, truncateds=truncateds, bootstrap_values=bootstrap_values, **options)
    before = compute_vtrace(**changed(arguments, lambda x: x[:, :end]), last_value=3.0 * last_value, **options)
    for whole, first, second in zip(together, before, after, strict=True):
        torch.testing.assert_close(whole, torch.cat([first, second], 1))


@given(sizes)
def test_rows_are_independent(size: tuple[int, int, int]) -> None:
    arguments = drawn(size)
    order = torch.randperm(size[0], generator=torch.Generator().manual_seed(size[2]))
    straight = compute_vtrace(**arguments, pg_rho_bar=2.0)
    shuffled = compute_vtrace(**{name: x[order] for name, x in arguments.items()}, pg_rho_bar=2.0)
    for a, b in zip(shuffled, straight, strict=True):
        torch.testing.assert_close(a, b[order])


@given(sizes)
def test_time_major_is_env_major(size: tuple[int, int, int]) -> None:
    arguments = drawn(size)
    last_value = arguments["last_value"]
    straight = compute_vtrace(**arguments, pg_rho_bar=2.0)
    for change in (lambda x: x.t(), lambda x: x.t().contiguous()):
        turned = compute_vtrace(**changed(arguments, change), last_value=last_value, pg_rho_bar=2.0, time_dim=0)
        for a, b in zip(turned, straight, strict=True):
            torch.testing.assert_close(a.t(), b)
