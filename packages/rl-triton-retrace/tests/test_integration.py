"""compute_retrace inside PyTorch: no gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import FlagsAtStarts
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import (
    assert_flags_at_starts_agree,
    assert_maps,
    assert_traces,
)
from rl_triton_retrace import compute_retrace
from torch import Tensor

FLOATS = ("action_probs_target", "action_probs_behavior", "q_values", "next_q_values_all", "rewards")


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The tensors of a call, by name."""
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(2, 9, generator=generator, dtype=dtype) for name in ("q_values", "rewards")}
    return numbers | {
        "action_probs_target": torch.randn(2, 9, 3, generator=generator, dtype=dtype).softmax(-1),
        "action_probs_behavior": torch.rand(2, 9, generator=generator, dtype=dtype) * 0.9 + 0.1,
        "next_q_values_all": torch.randn(2, 9, 3, generator=generator, dtype=dtype),
        "actions": torch.randint(3, (2, 9), generator=generator),
        "terminateds": torch.rand(2, 9, generator=generator) < 0.2,
        "truncateds": torch.rand(2, 9, generator=generator) < 0.2,
    }


def compute(**given: Any) -> tuple[Tensor, Tensor]:
    return compute_retrace(**({"gamma": 0.9} | given))


def test_outputs_are_targets_without_gradients() -> None:
    leaves = {name: x.requires_grad_() if name in FLOATS else x for name, x in drawn().items()}
    for output, plain in zip(compute(**leaves), compute(**drawn()), strict=True):
        assert not output.requires_grad
        assert torch.equal(output, plain)


def test_a_gradient_through_targets_is_zero() -> None:
    given = drawn()

    def total(rewards: Tensor) -> Tensor:
        return compute(**(given | {"rewards": rewards}))[0].sum() + rewards.sum()

    assert torch.equal(torch.func.grad(total)(given["rewards"]), torch.ones(2, 9, dtype=torch.float64))


SHAPES = dict.fromkeys((*FLOATS, "actions", "terminateds", "truncateds", "values", "gamma", "lambda_"), (2, 9))
SHAPES |= {"action_probs_target": (2, 9, 3), "next_q_values_all": (2, 9, 3)}
VMAPPED = [*SHAPES.items(), ("next_action_probs_target", (2, 9, 3)), ("next_action_probs_target", (2, 3))]


@pytest.mark.parametrize(("name", "shape"), VMAPPED)
def test_vmap_over_every_argument(name: str, shape: tuple[int, ...]) -> None:
    given = drawn()
    generator = torch.Generator().manual_seed(3)
    many = torch.rand(3, *shape, generator=generator, dtype=torch.float64)
    if name.endswith("ateds"):
        many = many < 0.3
    if name == "actions":
        many = torch.randint(3, (3, 2, 9), generator=generator)
    assert_maps(lambda x: compute(**(given | {name: x})), many)


def test_vmap_keeps_impossible_actions_out() -> None:
    given = drawn()
    given["action_probs_target"][..., 0] = 0.0
    given["next_q_values_all"][..., 0] = float("nan")
    many = torch.randn(3, 2, 9, dtype=torch.float64)
    targets, _ = torch.func.vmap(
        lambda r: compute(**(given | {"rewards": r, "actions": given["actions"].clamp(min=1)}))
    )(many)
    assert targets.isfinite().all()


def test_forward_mode_carries_no_tangent() -> None:
    given = drawn()
    rewards = given["rewards"]

    def one(rewards: Tensor) -> tuple[Tensor, Tensor]:
        return compute(**(given | {"rewards": rewards}))

    for tangent in torch.func.jvp(one, (rewards,), (torch.ones_like(rewards),))[1]:
        assert torch.equal(tangent, torch.zeros_like(rewards))


def test_modes_and_parameters() -> None:
    given = drawn()
    expected = compute(**given)
    with torch.inference_mode():
        for output, other in zip(compute(**given), expected, strict=True):
            torch.testing.assert_close(output, other)
    parameter = torch.nn.Parameter(given["q_values"])
    for output, other in zip(compute(**(given | {"q_values": parameter})), expected, strict=True):
        torch.testing.assert_close(output, other)


def test_meta_tensors_have_no_values() -> None:
    for output in compute(**{name: x.to("meta") for name, x in drawn().items()}):
        assert output.is_meta
        assert output.shape == (2, 9)


@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = {name: x if dim else x.transpose(0, 1).contiguous() for name, x in drawn().items()}

    def one(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return compute(**dict(zip(given, tensors, strict=True)), time_dim=dim)

    assert_traces(one, list(given.values()))


CALLS = (
    tuple(drawn()),
    (*drawn(), "next_action_probs_target", "gamma"),
    (*drawn(), "values", "lambda_"),
)


@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...]) -> None:
    check(compute, names)


@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_flags_at_starts(names: tuple[str, ...]) -> None:
    assert_flags_at_starts_agree(compute, names)


@CHECKS
def test_inside_pytorch_with_flags_at_starts(check: Callable[..., None]) -> None:
    check(FlagsAtStarts(compute), (*CALLS[1], "next_start", "next_start_truncated"))
