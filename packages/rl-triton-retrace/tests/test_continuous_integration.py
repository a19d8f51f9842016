"""compute_retrace_continuous inside PyTorch: no gradients, transforms, modes, compilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import assert_maps, assert_traces
from rl_triton_retrace import compute_retrace_continuous
from torch import Tensor

REAL = ("log_pi_target", "log_pi_behavior", "q_values", "next_values", "rewards")
FLAGS = ("terminateds", "truncateds")
TRACES = pytest.mark.parametrize("trace", ["retrace", "importance", "harutyunyan", "tree_backup"])


def drawn() -> dict[str, Tensor]:
    """The tensors of a call, by name."""
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(2, 9, generator=generator, dtype=torch.float64) for name in REAL}
    return numbers | {name: torch.rand(2, 9, generator=generator) < 0.2 for name in FLAGS}


def compute(**given: Any) -> tuple[Tensor, Tensor]:
    return compute_retrace_continuous(**({"gamma": 0.9, "truncateds": None} | given))


@TRACES
def test_outputs_are_targets_without_gradients(trace: str) -> None:
    leaves = {name: x.requires_grad_() if name in REAL else x for name, x in drawn().items()}
    for output, plain in zip(compute(**leaves, trace=trace), compute(**drawn(), trace=trace), strict=True):
        assert not output.requires_grad
        assert torch.equal(output, plain)

    def total(rewards: Tensor) -> Tensor:
        return compute(**(drawn() | {"rewards": rewards}), trace=trace)[0].sum() + rewards.sum()

    gradient = torch.func.grad(total)(drawn()["rewards"])
    assert torch.equal(gradient, torch.ones(2, 9, dtype=torch.float64))


@TRACES
@pytest.mark.parametrize("name", [*REAL, *FLAGS, "values", "gamma", "lambda_"])
def test_vmap_over_every_argument(name: str, trace: str) -> None:
    given = drawn()
    many = torch.rand(3, 2, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    if name in FLAGS:
        many = many < 0.3
    assert_maps(lambda x: compute(**(given | {name: x}), trace=trace), many)


def test_modes_and_parameters() -> None:
    expected = compute(**drawn())
    with torch.inference_mode():
        for output, other in zip(compute(**drawn()), expected, strict=True):
            torch.testing.assert_close(output, other)
    parameter = torch.nn.Parameter(drawn()["q_values"])
    for output, other in zip(compute(**(drawn() | {"q_values": parameter})), expected, strict=True):
        torch.testing.assert_close(output, other)


@TRACES
def test_meta_tensors_have_no_values(trace: str) -> None:
    for output in compute(**{name: x.to("meta") for name, x in drawn().items()}, trace=trace):
        assert output.is_meta
        assert output.shape == (2, 9)


@TRACES
@pytest.mark.parametrize("layout", ["environment-major", "time-major"])
def test_tracing_looks_at_no_number(layout: str, trace: str) -> None:
    dim = 1 if layout == "environment-major" else 0
    given = {name: x if dim else x.t().contiguous() for name, x in drawn().items()}

    def one(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return compute(**dict(zip(given, tensors, strict=True)), trace=trace, time_dim=dim)

    assert_traces(one, list(given.values()))


CALLS = {
    "retrace": tuple(drawn()),
    "importance": (*REAL, "terminateds", "values", "gamma"),
    "harutyunyan": ("q_values", "next_values", "rewards", *FLAGS),
    "tree_backup": (*REAL, "terminateds", "lambda_"),
}


@pytest.mark.parametrize("trace", CALLS)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], trace: str) -> None:
    unread = {} if "log_pi_target" in CALLS[trace] else {"log_pi_target": None, "log_pi_behavior": None}
    check(partial(compute, trace=trace, **unread), CALLS[trace])
