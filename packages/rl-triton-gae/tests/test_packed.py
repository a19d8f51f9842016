"""compute_gae of packed sequences, on the CPU: what each of them gives apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from rl_triton_core.reference import SequencesApart
from rl_triton_core.testing.calls import Draw, assert_packs, with_mask, with_sequences
from rl_triton_gae import compute_gae, normalize_advantages, reference
from torch import Tensor

pytestmark = pytest.mark.filterwarnings("ignore:truncateds without")
OPTIONS = ("nothing", "last_value", "bootstrap_values", "next_values", "per-step", "truncateds")
SHAPES = [(1, 90), (3, 61)]


def drawn(shape: tuple[int, int], option: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Arguments of (rows, steps)."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "values")}
    arguments["terminateds"] = draw.flags("random")
    if option in ("last_value", "per-step", "truncateds"):
        arguments["last_value"] = draw.numbers(shape[:1])
    if option in ("bootstrap_values", "next_values"):
        arguments[option] = draw.numbers()
    if option in ("bootstrap_values", "next_values", "truncateds"):
        arguments["truncateds"] = draw.flags("random")
    if option == "per-step":
        arguments |= {name: draw.numbers().sigmoid() for name in ("gamma", "lambda_")}
    return arguments


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sequences_give_what_they_give_apart(shape: tuple[int, int], option: str, masked: bool) -> None:
    arguments = drawn(shape, option)
    given = with_mask(arguments) if masked else arguments
    with_targets = (partial(f, return_targets=True) for f in (compute_gae, reference.compute_gae))
    assert_packs(*with_targets, given, device="cpu")


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("option", OPTIONS)
def test_derivatives_are_those_of_the_sequences_apart(option: str, masked: bool) -> None:
    arguments = drawn((3, 40), option, torch.float64)
    # What no sequence holds is NaN, and so is what no mask holds; the oracle's own derivatives need numbers there.
    given, plain = (
        with_sequences(with_mask(arguments, poisoned=poisoned) if masked else arguments) for poisoned in (True, False)
    )
    names = [name for name, x in given.items() if isinstance(x, Tensor) and x.is_floating_point()]
    weights = torch.randn(given["rewards"].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients(function: Any, of: dict[str, Any]) -> tuple[Tensor | None, ...]:
        inputs = [of[name].requires_grad_() for name in names]
        return torch.autograd.grad((function(**of) * weights).sum(), inputs, allow_unused=True)

    expected = gradients(SequencesApart(reference.compute_gae), plain)
    for name, actual, wanted in zip(names, gradients(compute_gae, given), expected, strict=True):
        wanted = torch.zeros_like(given[name]) if wanted is None else wanted
        torch.testing.assert_close(actual, wanted, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_statistics_are_those_of_the_sequences() -> None:
    given = with_sequences(drawn((1, 90), "last_value"))
    advantages = compute_gae(**given)
    inside = torch.zeros(90, dtype=torch.bool)
    inside[given["cu_seqlens"][0] : given["cu_seqlens"][-1]] = True
    assert not inside.all()
    expected = normalize_advantages(advantages, inside)
    torch.testing.assert_close(compute_gae(**given, normalize=True), expected, rtol=0, atol=0)
    assert compute_gae(**given, normalize=True)[inside].std() == pytest.approx(1.0, abs=1e-5)


def test_no_sequences_and_no_steps() -> None:
    x = torch.full((5,), float("nan"))
    flags = torch.zeros(5)
    for offsets in ([3], [2, 2], [5, 5, 5], [0, 0]):
        cu_seqlens = torch.tensor(offsets)
        last_value = torch.full((len(offsets) - 1,), float("nan"))
        advantages = compute_gae(x, x, flags, last_value=last_value, cu_seqlens=cu_seqlens, time_dim=0)
        assert advantages.tolist() == [0.0] * 5
    empty = torch.empty(0, 2)
    last_value = torch.empty(3, 2)
    offsets = torch.zeros(4, dtype=torch.int32)
    assert compute_gae(empty, empty, empty, last_value=last_value, cu_seqlens=offsets, time_dim=0).shape == (0, 2)


@pytest.mark.parametrize("out", [False, True])
def test_into_a_buffer_and_back(out: bool) -> None:
    given = with_sequences(drawn((3, 61), "bootstrap_values"))
    expected = compute_gae(**given)
    if out:
        buffer = torch.empty_like(expected)
        assert compute_gae(**given, out=buffer) is buffer
        expected, given["cu_seqlens"] = buffer, given["cu_seqlens"].repeat_interleave(2)[::2]
    torch.testing.assert_close(compute_gae(**given), expected, rtol=0, atol=0)


def test_flags_at_starts_are_refused() -> None:
    given = with_sequences(drawn((1, 20), "nothing"))
    with pytest.raises(ValueError, match='boundary: expected "ends_at" with cu_seqlens, got "starts_at"'):
        compute_gae(**given, boundary="starts_at")


def test_worked_values() -> None:
    rewards = torch.tensor([9.0, 1.0, 2.0, 3.0, 4.0, 9.0])
    values = torch.tensor([9.0, 0.5, 0.5, 0.5, 0.5, 9.0])
    last_value = torch.tensor([1.0, float("nan"), 2.0])
    # Steps 1 and 2, none, steps 3 and 4.
    advantages = compute_gae(
        rewards,
        values,
        torch.zeros(6),
        gamma=0.5,
        lambda_=1.0,
        last_value=last_value,
        time_dim=0,
        cu_seqlens=torch.tensor([1, 3, 3, 5]),
    )
    # 2 - 0.5 + 0.5 * 1 = 2; 1 - 0.5 + 0.5 * 0.5 + 0.5 * 2 = 1.75. 4 - 0.5 + 0.5 * 2 = 4.5; 3 - 0.5 + 0.25 + 2.25 = 5.
    assert advantages.tolist() == [0.0, 1.75, 2.0, 5.0, 4.5, 0.0]
