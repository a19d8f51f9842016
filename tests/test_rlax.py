"""Off-policy targets, advantages and n-step returns against rlax, where it is installed (`nox -s rlax`).

rlax takes one sequence at a time, lets a discount of 0 stand for a termination and a trace of 0 for a truncation, and
leaves lambda to the caller, who multiplies it into a trace or not. It computes in float32, as JAX does by default.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_retrace import compute_retrace, compute_retrace_continuous
from rl_triton_returns import compute_n_step_returns
from rl_triton_vtrace import compute_vtrace
from torch import Tensor

rlax = pytest.importorskip("rlax")
jnp = pytest.importorskip("jax.numpy")

ROWS, STEPS, ACTIONS = 4, 30, 3
GAMMA, LAMBDA = 0.95, 0.9


def array(x: Tensor) -> Any:
    return jnp.asarray(x.numpy())


def tensor(x: Any) -> Tensor:
    return torch.tensor(x.tolist())


@pytest.fixture
def drawn() -> dict[str, Tensor]:
    """Log probabilities, rewards, values of s_0 to s_T, and flags; an environment in which nothing ends comes first."""
    generator = torch.Generator().manual_seed(0)
    given = {name: 0.5 * torch.randn(ROWS, STEPS, generator=generator) for name in ("log_pi_target", "log_pi_behavior")}
    given["rewards"] = torch.randn(ROWS, STEPS, generator=generator)
    given["values"] = torch.randn(ROWS, STEPS + 1, generator=generator)
    for name in ("terminateds", "truncateds"):
        given[name] = torch.rand(ROWS, STEPS, generator=generator) < 0.15
        given[name][0] = False
    return given


@pytest.mark.parametrize("leak", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("rho_bar", "pg_rho_bar"), [(1.0, 1.0), (2.0, 1.5)])
def test_vtrace(drawn: dict[str, Tensor], rho_bar: float, pg_rho_bar: float, leak: float) -> None:
    values, terminateds = drawn["values"], drawn["terminateds"]
    targets, advantages = compute_vtrace(
        drawn["log_pi_target"],
        drawn["log_pi_behavior"],
        values[:, :-1],
        drawn["rewards"],
        terminateds,
        None,
        GAMMA,
        rho_bar,
        1.0,
        last_value=values[:, -1],
        lambda_=LAMBDA,
        pg_rho_bar=pg_rho_bar,
        leak=leak,
    )
    ratios = (drawn["log_pi_target"] - drawn["log_pi_behavior"]).exp()
    discounts = GAMMA * (~terminateds).float()
    for row in range(ROWS):
        per_step = [array(x[row]) for x in (values[:, :-1], values[:, 1:], drawn["rewards"], discounts, ratios)]
        clips = {"lambda_": LAMBDA, "clip_rho_threshold": rho_bar, "clip_pg_rho_threshold": pg_rho_bar}
        if leak:
            theirs = rlax.leaky_vtrace_td_error_and_advantage(*per_step, alpha=1.0 - leak, **clips)
        else:
            theirs = rlax.vtrace_td_error_and_advantage(*per_step, **clips)
        torch.testing.assert_close(targets[row] - values[row, :-1], tensor(theirs.errors), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(advantages[row], tensor(theirs.pg_advantage), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("trace", ["retrace", "importance", "harutyunyan", "tree_backup"])
def test_retrace_and_its_kin(drawn: dict[str, Tensor], trace: str) -> None:
    generator = torch.Generator().manual_seed(1)
    policy = torch.randn(ROWS, STEPS + 1, ACTIONS, generator=generator).softmax(-1)
    behavior = 0.2 + 0.8 * torch.rand(ROWS, STEPS + 1, generator=generator)
    q_all = torch.randn(ROWS, STEPS + 1, ACTIONS, generator=generator)
    actions = torch.randint(ACTIONS, (ROWS, STEPS + 1), generator=generator)
    chosen, q_values = (x.gather(-1, actions.unsqueeze(-1)).squeeze(-1) for x in (policy, q_all))
    terminateds, truncateds = drawn["terminateds"], drawn["truncateds"]
    shared: dict[str, Any] = {"gamma": GAMMA, "lambda_": LAMBDA}
    targets, _ = compute_retrace_continuous(
        chosen[:, :-1].log(),
        behavior[:, :-1].log(),
        q_values[:, :-1],
        (policy * q_all).sum(-1)[:, 1:],
        drawn["rewards"],
        terminateds,
        truncateds,
        **shared,
        trace=trace,
    )
    traces = {
        "retrace": LAMBDA * (chosen / behavior).clamp(max=1.0),
        "importance": LAMBDA * chosen / behavior,
        "harutyunyan": torch.full_like(chosen, LAMBDA),
        "tree_backup": LAMBDA * chosen,
    }[trace]
    discounts = GAMMA * (~terminateds).float()
    # After a truncation the expectation stands alone.
    traces = torch.where(truncateds, 0.0, traces[:, 1:])
    for row in range(ROWS):
        theirs = rlax.general_off_policy_returns_from_action_values(
            array(q_all[row, 1:]),
            array(actions[row, 1:]),
            array(drawn["rewards"][row]),
            array(discounts[row]),
            array(traces[row]),
            array(policy[row, 1:]),
        )
        torch.testing.assert_close(targets[row], tensor(theirs), rtol=1e-4, atol=1e-4)
    if trace == "retrace":
        discrete, _ = compute_retrace(
            policy[:, :-1],
            behavior[:, :-1],
            q_values[:, :-1],
            q_all[:, 1:],
            actions[:, :-1],
            drawn["rewards"],
            terminateds,
            truncateds,
            **shared,
            next_action_probs_target=policy[:, 1:],
        )
        torch.testing.assert_close(discrete, targets, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 4, 7, 30])
def test_n_step_returns(drawn: dict[str, Tensor], n: int) -> None:
    values, terminateds = drawn["values"], drawn["terminateds"]
    returns = compute_n_step_returns(
        drawn["rewards"], values[:, :-1], terminateds, None, GAMMA, n, last_value=values[:, -1]
    )
    discounts = GAMMA * (~terminateds).float()
    for row in range(ROWS):
        per_step = (array(x[row]) for x in (drawn["rewards"], discounts, values[:, 1:]))
        theirs = rlax.n_step_bootstrapped_returns(*per_step, n)
        torch.testing.assert_close(returns[row], tensor(theirs), rtol=1e-4, atol=1e-4)
