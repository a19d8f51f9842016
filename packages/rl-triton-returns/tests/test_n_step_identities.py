"""What holds of n-step returns whatever the inputs."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from rl_triton_returns import compute_discounted_returns, compute_n_step_returns
from torch import Tensor

sizes = st.tuples(st.integers(1, 6), st.integers(2, 70), st.integers(0, 2**31))
shares = st.sampled_from([0.0, 0.5, 0.99, 1.0])
steps = st.integers(1, 80)


def drawn(size: tuple[int, int, int]) -> dict[str, Any]:
    """The per-step arguments in float64, with a value for every boundary."""
    shape, generator = size[:2], torch.Generator().manual_seed(size[2])
    names = ("rewards", "values", "bootstrap_values")
    numbers = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in names}
    return numbers | {name: torch.rand(shape, generator=generator) < 0.1 for name in ("terminateds", "truncateds")}


@given(sizes, shares, st.integers(0, 5))
def test_as_many_steps_as_there_are_make_the_discounted_return(
    size: tuple[int, int, int], gamma: float, more: int
) -> None:
    arguments = drawn(size)
    n_step = compute_n_step_returns(**arguments, gamma=gamma, n=size[1] + more)
    del arguments["values"]
    torch.testing.assert_close(n_step, compute_discounted_returns(**arguments, gamma=gamma))


@given(sizes, shares, steps)
def test_one_step_more_is_the_reward_and_the_next_return(size: tuple[int, int, int], gamma: float, n: int) -> None:
    arguments = drawn(size)
    fewer, more = (compute_n_step_returns(**arguments, gamma=gamma, n=steps) for steps in (n, n + 1))
    ended = arguments["terminateds"] | arguments["truncateds"]
    expected = torch.where(ended, fewer, arguments["rewards"] + gamma * fewer.roll(-1, 1))
    torch.testing.assert_close(more[:, :-1], expected[:, :-1])
    torch.testing.assert_close(more[:, -1], fewer[:, -1])


@given(sizes, shares)
def test_one_step_is_the_target_of_td(size: tuple[int, int, int], gamma: float) -> None:
    arguments = drawn(size)
    next_values = torch.cat([arguments["values"][:, 1:], arguments["bootstrap_values"][:, -1:]], 1)
    next_values = torch.where(arguments["truncateds"], arguments["bootstrap_values"], next_values)
    expected = arguments["rewards"] + gamma * torch.where(arguments["terminateds"], 0.0, next_values)
    torch.testing.assert_close(compute_n_step_returns(**arguments, gamma=gamma, n=1), expected)


@given(sizes, shares, steps)
def test_next_values_say_the_same_in_one_tensor(size: tuple[int, int, int], gamma: float, n: int) -> None:
    arguments = drawn(size)
    expected = compute_n_step_returns(**arguments, gamma=gamma, n=n)
    values, bootstrap_values = arguments.pop("values"), arguments.pop("bootstrap_values")
    next_values = torch.cat([values[:, 1:], bootstrap_values[:, -1:]], 1)
    next_values = torch.where(arguments["truncateds"], bootstrap_values, next_values)
    actual = compute_n_step_returns(**arguments, values=None, gamma=gamma, n=n, next_values=next_values)
    torch.testing.assert_close(actual, expected)


@given(sizes, shares, steps)
def test_one_gamma_is_that_of_every_step(size: tuple[int, int, int], gamma: float, n: int) -> None:
    arguments = drawn(size)
    per_step = torch.full_like(arguments["rewards"], gamma)
    torch.testing.assert_close(
        compute_n_step_returns(**arguments, gamma=per_step, n=n), compute_n_step_returns(**arguments, gamma=gamma, n=n)
    )


@given(sizes, steps, st.data())
def test_a_boundary_separates(size: tuple[int, int, int], n: int, data: st.DataObject) -> None:
    arguments = drawn(size)
    end = data.draw(st.integers(1, size[1] - 1))
    for flag in ("terminateds", "truncateds"):
        arguments[flag][:, end - 1] = True
        together = compute_n_step_returns(**arguments, n=n)
        before, after = (
            compute_n_step_returns(**{name: x[:, part] for name, x in arguments.items()}, n=n)
            for part in (slice(None, end), slice(end, None))
        )
        torch.testing.assert_close(together, torch.cat([before, after], 1))
        arguments[flag][:, end - 1] = False


@given(sizes, steps)
def test_rows_are_independent(size: tuple[int, int, int], n: int) -> None:
    arguments = drawn(size)
    order = torch.randperm(size[0], generator=torch.Generator().manual_seed(size[2]))
    shuffled = compute_n_step_returns(**{name: x[order] for name, x in arguments.items()}, n=n)
    torch.testing.assert_close(shuffled, compute_n_step_returns(**arguments, n=n)[order])


@given(sizes, steps)
def test_time_major_is_env_major(size: tuple[int, int, int], n: int) -> None:
    arguments = drawn(size)
    straight = compute_n_step_returns(**arguments, n=n)

    def turned(x: Tensor, copied: bool) -> Tensor:
        return x.t().contiguous() if copied else x.t()

    for copied in (False, True):
        other = {name: turned(x, copied) for name, x in arguments.items()}
        torch.testing.assert_close(compute_n_step_returns(**other, n=n, time_dim=0).t(), straight)
