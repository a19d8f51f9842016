"""What holds of Retrace whatever the inputs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_retrace import compute_retrace
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(1, 5), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])


def drawn(size: tuple[int, int, int, int]) -> dict[str, Any]:
    """Arguments in float64, with terminations and truncations."""
    rows, steps, count, seed = size
    generator = torch.Generator().manual_seed(seed)
    numbers = {name: torch.randn(rows, steps, generator=generator, dtype=torch.float64) for name in ("q", "r", "mu")}
    return {
        "action_probs_target": torch.randn(rows, steps, count, generator=generator, dtype=torch.float64).softmax(-1),
        "action_probs_behavior": numbers["mu"].sigmoid(),
        "q_values": numbers["q"],
        "next_q_values_all": torch.randn(rows, steps, count, generator=generator, dtype=torch.float64),
        "actions": torch.randint(count, (rows, steps), generator=generator),
        "rewards": numbers["r"],
        "terminateds": torch.rand(rows, steps, generator=generator) < 0.1,
        "truncateds": torch.rand(rows, steps, generator=generator) < 0.1,
        "gamma": 0.97,
        "lambda_": 0.9,
    }


def taken(arguments: dict[str, Any]) -> Tensor:
    """pi(a_t|s_t)."""
    return arguments["action_probs_target"].gather(-1, arguments["actions"].unsqueeze(-1)).squeeze(-1)


@given(sizes, shares, shares)
def test_state_values_and_equal_policies_make_gae(
    size: tuple[int, int, int, int], gamma: float, lambda_: float
) -> None:
    arguments = drawn(size) | {"gamma": gamma, "lambda_": lambda_, "truncateds": None}
    rewards, values, count = arguments["rewards"], arguments["q_values"], size[2]
    last_value = arguments["next_q_values_all"][:, -1, 0]
    following = torch.cat([values[:, 1:], last_value[:, None]], 1)
    arguments["action_probs_behavior"] = taken(arguments)
    arguments["next_q_values_all"] = following.unsqueeze(-1).expand(-1, -1, count)
    advantages, after = torch.empty_like(rewards), torch.zeros_like(last_value)
    for t in reversed(range(rewards.shape[1])):
        inside = gamma * following[:, t] + gamma * lambda_ * after
        after = rewards[:, t] - values[:, t] + torch.where(arguments["terminateds"][:, t], 0.0, inside)
        advantages[:, t] = after
    targets, _ = compute_retrace(**arguments)
    torch.testing.assert_close(targets, advantages + values)


@given(sizes)
def test_exact_q_is_a_fixed_point(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size)
    policy, next_q = arguments["action_probs_target"], arguments["next_q_values_all"]
    next_policy = torch.where(arguments["truncateds"].unsqueeze(-1), policy, policy.roll(-1, 1))
    next_policy[:, -1] = policy[:, -1]
    expected = torch.where(arguments["terminateds"], 0.0, (next_policy * next_q).sum(-1))
    arguments["q_values"] = arguments["rewards"] + 0.97 * expected
    for lambda_ in (0.0, 1.0):
        targets, advantages = compute_retrace(**(arguments | {"lambda_": lambda_}))
        torch.testing.assert_close(targets, arguments["q_values"])
        # One step on, the residual differs from 0 only by what q_values and next_q_values_all disagree on.
        ended = arguments["terminateds"] | arguments["truncateds"]
        torch.testing.assert_close(advantages[ended], torch.zeros_like(advantages[ended]))


@given(sizes)
def test_no_trace_is_the_expected_one_step_target(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size) | {"lambda_": 0.0, "next_action_probs_target": drawn(size)["action_probs_target"]}
    expected = (arguments["next_action_probs_target"] * arguments["next_q_values_all"]).sum(-1)
    targets, _ = compute_retrace(**arguments)
    one_step = arguments["rewards"] + 0.97 * torch.where(arguments["terminateds"], 0.0, expected)
    torch.testing.assert_close(targets, one_step)


@given(sizes)
def test_values_turn_targets_into_advantages(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size)
    values = arguments["rewards"].flip(0)
    targets, advantages = compute_retrace(**arguments, values=values)
    rho = (taken(arguments) / arguments["action_probs_behavior"]).clamp(max=1.0)
    torch.testing.assert_close(advantages, rho * (targets - values))
    assert torch.equal(targets, compute_retrace(**arguments)[0])


@given(sizes)
def test_an_impossible_action_may_as_well_not_be_there(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size)
    more = dict(arguments)
    policy, next_q = arguments["action_probs_target"], arguments["next_q_values_all"]
    more["action_probs_target"] = torch.cat([policy, torch.zeros_like(policy[..., :1])], -1)
    more["next_q_values_all"] = torch.cat([next_q, torch.full_like(next_q[..., :1], float("nan"))], -1)
    for output, other in zip(compute_retrace(**arguments), compute_retrace(**more), strict=True):
        torch.testing.assert_close(output, other)


@given(sizes, st.data())
def test_a_boundary_separates(size: tuple[int, int, int, int], data: st.DataObject) -> None:
    arguments = drawn(size)
    end = data.draw(st.integers(1, size[1] - 1))
    for flag in ("terminateds", "truncateds"):
        arguments[flag][:, end - 1] = True
        together = compute_retrace(**arguments)
        parts = [
            compute_retrace(**{name: x[:, part] if isinstance(x, Tensor) else x for name, x in arguments.items()})
            for part in (slice(None, end), slice(end, None))
        ]
        for output, before, after in zip(together, *parts, strict=True):
            torch.testing.assert_close(output, torch.cat([before, after], 1))
        arguments[flag][:, end - 1] = False


@given(sizes)
def test_rows_are_independent(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size)
    order = torch.randperm(size[0], generator=torch.Generator().manual_seed(size[3]))
    shuffled = {name: x[order] if isinstance(x, Tensor) else x for name, x in arguments.items()}
    for output, other in zip(compute_retrace(**arguments), compute_retrace(**shuffled), strict=True):
        torch.testing.assert_close(other, output[order])


@given(sizes)
def test_actions_have_no_order(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size)
    turned = {name: arguments[name].flip(-1) for name in ("action_probs_target", "next_q_values_all")}
    turned["actions"] = size[2] - 1 - arguments["actions"]
    for output, other in zip(compute_retrace(**arguments), compute_retrace(**(arguments | turned)), strict=True):
        torch.testing.assert_close(output, other)


@given(sizes)
def test_time_major_is_env_major(size: tuple[int, int, int, int]) -> None:
    arguments = drawn(size)
    straight = compute_retrace(**arguments)
    for contiguous in (False, True):
        turned = {name: x.transpose(0, 1) if isinstance(x, Tensor) else x for name, x in arguments.items()}
        if contiguous:
            turned = {name: x.contiguous() if isinstance(x, Tensor) else x for name, x in turned.items()}
        for output, other in zip(straight, compute_retrace(**turned, time_dim=0), strict=True):
            torch.testing.assert_close(other.t(), output)
