"""What holds for continuous actions whatever the inputs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_retrace import compute_retrace, compute_retrace_continuous
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])
traces = st.sampled_from(["retrace", "importance", "harutyunyan", "tree_backup"])


def drawn(size: tuple[int, int, int]) -> dict[str, Any]:
    """Arguments in float64, with terminations and truncations."""
    rows, steps, seed = size
    generator = torch.Generator().manual_seed(seed)

    def numbers() -> Tensor:
        return torch.randn(rows, steps, generator=generator, dtype=torch.float64)

    arguments: dict[str, Any] = {name: 0.3 * numbers() for name in ("log_pi_target", "log_pi_behavior")}
    arguments |= {name: numbers() for name in ("q_values", "next_values", "rewards")}
    arguments |= {name: torch.rand(rows, steps, generator=generator) < 0.1 for name in ("terminateds", "truncateds")}
    return arguments | {"gamma": 0.97, "lambda_": 0.9}


def assert_equal(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y)


@given(sizes, st.integers(1, 5), st.booleans())
def test_it_is_the_discrete_one_with_the_expectation_given(
    size: tuple[int, int, int], count: int, with_values: bool
) -> None:
    arguments = drawn(size)
    generator = torch.Generator().manual_seed(size[2] // 2)
    shape = (*arguments["rewards"].shape, count)
    policy, next_policy = (torch.rand(shape, generator=generator, dtype=torch.float64).softmax(-1) for _ in range(2))
    next_q = torch.randn(shape, generator=generator, dtype=torch.float64)
    actions = torch.randint(count, shape[:2], generator=generator)
    shared = {
        name: arguments[name] for name in ("q_values", "rewards", "terminateds", "truncateds", "gamma", "lambda_")
    }
    if with_values:
        shared["values"] = arguments["next_values"]
    discrete = compute_retrace(
        policy,
        arguments["log_pi_behavior"].exp(),
        next_q_values_all=next_q,
        actions=actions,
        next_action_probs_target=next_policy,
        **shared,
    )
    continuous = compute_retrace_continuous(
        policy.gather(-1, actions.unsqueeze(-1)).squeeze(-1).log(),
        arguments["log_pi_behavior"],
        next_values=(next_policy * next_q).sum(-1),
        **shared,
    )
    assert_equal(continuous, discrete)


@given(sizes, shares, shares)
def test_with_equal_policies_three_traces_are_one(size: tuple[int, int, int], gamma: float, lambda_: float) -> None:
    arguments = drawn(size) | {"gamma": gamma, "lambda_": lambda_}
    arguments["log_pi_behavior"] = arguments["log_pi_target"]
    retrace, *others = (
        compute_retrace_continuous(**arguments, trace=trace) for trace in ("retrace", "importance", "harutyunyan")
    )
    for other in others:
        assert_equal(other, retrace)
    # So is the fourth where the action is certain.
    certain = arguments | {"log_pi_target": 0.0 * arguments["rewards"], "log_pi_behavior": 0.0 * arguments["rewards"]}
    tree_backup = compute_retrace_continuous(**certain, trace="tree_backup")
    assert_equal(tree_backup, compute_retrace_continuous(**certain, trace="retrace"))


@given(sizes)
def test_tree_backup_is_importance_sampling_of_a_certain_behavior(size: tuple[int, int, int]) -> None:
    arguments = drawn(size)
    arguments["log_pi_behavior"] = 0.0 * arguments["rewards"]
    importance = compute_retrace_continuous(**arguments, trace="importance")
    assert_equal(compute_retrace_continuous(**arguments, trace="tree_backup"), importance)


@given(sizes, traces)
def test_exact_q_is_a_fixed_point(size: tuple[int, int, int], trace: str) -> None:
    arguments = drawn(size)
    expected = torch.where(arguments["terminateds"], 0.0, arguments["next_values"])
    arguments["q_values"] = arguments["rewards"] + 0.97 * expected
    targets, _ = compute_retrace_continuous(**arguments, trace=trace)
    torch.testing.assert_close(targets, arguments["q_values"])


@given(sizes, traces)
def test_no_trace_is_the_expected_one_step_target(size: tuple[int, int, int], trace: str) -> None:
    arguments = drawn(size) | {"lambda_": 0.0}
    expected = torch.where(arguments["terminateds"], 0.0, arguments["next_values"])
    targets, _ = compute_retrace_continuous(**arguments, trace=trace)
    torch.testing.assert_close(targets, arguments["rewards"] + 0.97 * expected)


@given(sizes, traces, st.data())
def test_a_boundary_separates(size: tuple[int, int, int], trace: str, data: st.DataObject) -> None:
    arguments = drawn(size)
    end = data.draw(st.integers(1, size[1] - 1))
    for flag in ("terminateds", "truncateds"):
        arguments[flag][:, end - 1] = True
        together = compute_retrace_continuous(**arguments, trace=trace)
        before, after = (
            compute_retrace_continuous(
                **{name: x[:, part] if isinstance(x, Tensor) else x for name, x in arguments.items()}, trace=trace
            )
            for part in (slice(None, end), slice(end, None))
        )
        assert_equal(together, tuple(torch.cat(pair, 1) for pair in zip(before, after, strict=True)))
        arguments[flag][:, end - 1] = False


@given(sizes, traces)
def test_rows_are_independent(size: tuple[int, int, int], trace: str) -> None:
    arguments = drawn(size)
    order = torch.randperm(size[0], generator=torch.Generator().manual_seed(size[2]))
    shuffled = {name: x[order] if isinstance(x, Tensor) else x for name, x in arguments.items()}
    straight = compute_retrace_continuous(**arguments, trace=trace)
    assert_equal(compute_retrace_continuous(**shuffled, trace=trace), tuple(x[order] for x in straight))


@given(sizes, traces)
def test_time_major_is_env_major(size: tuple[int, int, int], trace: str) -> None:
    arguments = drawn(size)
    straight = compute_retrace_continuous(**arguments, trace=trace)
    for change in (lambda x: x.t(), lambda x: x.t().contiguous()):
        turned = {name: change(x) if isinstance(x, Tensor) else x for name, x in arguments.items()}
        outputs = compute_retrace_continuous(**turned, trace=trace, time_dim=0)
        assert_equal(tuple(x.t() for x in outputs), straight)
