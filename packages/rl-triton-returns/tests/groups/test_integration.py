"""compute_group_advantages inside PyTorch: transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import assert_maps, assert_traces, drawn_by_name
from rl_triton_returns import compute_group_advantages
from torch import Tensor
from torch.autograd import forward_ad


def of_responses(rewards: Tensor, actions: Tensor, dones: Tensor, out: Tensor | None = None) -> Tensor:
    """A call by the names that the checks draw arguments for: ids like actions, a mask like flags."""
    return compute_group_advantages(rewards, actions, dones, out=out)


def of_tokens(rewards: Tensor, actions: Tensor, action_probs_target: Tensor, out: Tensor | None = None) -> Tensor:
    """A mask like numbers for every action, one more axis than rewards have."""
    tokens = action_probs_target > 0.5
    return compute_group_advantages(rewards, actions, tokens, baseline="leave_one_out", scale=None, out=out)


CALLS: list[tuple[Callable[..., Tensor], tuple[str, ...]]] = [
    (compute_group_advantages, ("rewards",)),
    (of_responses, ("rewards", "actions", "dones")),
    (of_tokens, ("rewards", "actions", "action_probs_target")),
]
every_call = pytest.mark.parametrize(("function", "names"), CALLS, ids=["rows", "responses", "tokens"])


@every_call
@CHECKS
def test_inside_pytorch(check: Callable[..., None], function: Callable[..., Tensor], names: tuple[str, ...]) -> None:
    check(function, names)


@every_call
def test_tracing_looks_at_no_number(function: Callable[..., Tensor], names: tuple[str, ...]) -> None:
    given = drawn_by_name(names, 9)
    assert_traces(lambda *tensors: function(**dict(zip(names, tensors, strict=True))), list(given.values()))


@every_call
def test_meta_tensors_have_no_values(function: Callable[..., Tensor], names: tuple[str, ...]) -> None:
    given = drawn_by_name(names, 9)
    advantages = function(**{name: x.to("meta") for name, x in given.items()})
    assert advantages.is_meta
    assert advantages.shape == function(**given).shape


@every_call
def test_advantages_are_targets(function: Callable[..., Tensor], names: tuple[str, ...]) -> None:
    given: dict[str, Any] = drawn_by_name(names, 9)
    expected = function(**given)
    leaf = given["rewards"].clone().requires_grad_()
    for rewards in (leaf, leaf * 1.0, torch.nn.Parameter(given["rewards"])):
        advantages = function(**(given | {"rewards": rewards}))
        assert not advantages.requires_grad
        torch.testing.assert_close(advantages, expected)
    with torch.inference_mode():
        torch.testing.assert_close(function(**given), expected)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(given["rewards"], torch.ones_like(given["rewards"]))  # type: ignore[no-untyped-call]
        assert forward_ad.unpack_dual(function(**(given | {"rewards": dual}))).tangent is None  # type: ignore[no-untyped-call]
    gradient = torch.func.grad(lambda x: (function(**(given | {"rewards": x})) * x.sum()).sum())(given["rewards"])
    torch.testing.assert_close(gradient, expected.sum().expand_as(gradient))


@pytest.mark.parametrize("name", ["rewards", "actions", "dones"])
def test_vmap_over_every_argument(name: str) -> None:
    given = drawn_by_name(("rewards", "actions", "dones"), 9)
    many = torch.stack([given[name], given[name].flip(0), given[name].flip(1)])
    assert_maps(lambda x: of_responses(**(given | {name: x})), many)


def test_a_training_step_compiles_whole() -> None:
    given = drawn_by_name(("rewards", "actions", "action_probs_target"), 9, torch.float32)
    log_probs = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def loss(rewards: Tensor, actions: Tensor, action_probs_target: Tensor) -> Tensor:
        return -(of_tokens(rewards, actions, action_probs_target) * log_probs).mean()

    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)(**given)
    torch.testing.assert_close(compiled, loss(**given))
    (gradient,) = torch.autograd.grad(compiled, log_probs)
    torch.testing.assert_close(gradient, -of_tokens(**given) / log_probs.numel())
