"""The public call: signature, shapes, dtypes, layouts, errors and warnings."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from rl_triton_returns import compute_group_advantages
from torch import Tensor

NAN = float("nan")


def call(**changes: Any) -> Tensor:
    """A good call of 6 responses in 3 groups, with changes."""
    good: dict[str, Any] = {"rewards": torch.arange(6.0), "group_ids": torch.tensor([5, 9, 5, -1, 9, -1])}
    return compute_group_advantages(**(good | changes))


def test_signature() -> None:
    parameters = inspect.signature(compute_group_advantages).parameters
    assert list(parameters) == ["rewards", "group_ids", "mask", "baseline", "scale", "unbiased", "eps", "out"]
    assert {name: p.default for name, p in parameters.items() if p.default is not p.empty} == {
        "group_ids": None,
        "mask": None,
        "baseline": "mean",
        "scale": "std",
        "unbiased": True,
        "eps": 1e-6,
        "out": None,
    }
    assert [p.kind is p.KEYWORD_ONLY for p in parameters.values()] == [False] * 3 + [True] * 5


BAD_CALLS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"rewards": [1.0]}, TypeError, r"rewards: expected a torch.Tensor, got list"),
    ({"rewards": None}, TypeError, r"rewards: expected a torch.Tensor, got None"),
    ({"group_ids": [1]}, TypeError, r"group_ids: expected a torch.Tensor, got list"),
    ({"mask": True}, TypeError, r"mask: expected a torch.Tensor, got bool"),
    ({"rewards": torch.ones(6, dtype=torch.complex64)}, TypeError, r"rewards: expected float16.*complex64"),
    ({"rewards": torch.ones(6).to(torch.float8_e4m3fn)}, TypeError, r"rewards: .*float8"),
    ({"group_ids": torch.ones(6)}, TypeError, r"group_ids: expected an integer dtype, got torch.float32"),
    ({"group_ids": torch.ones(6) > 0}, TypeError, r"group_ids: expected an integer dtype, got torch.bool"),
    ({"mask": torch.ones(6, dtype=torch.complex64)}, TypeError, r"mask: expected flags of a real dtype"),
    ({"mask": torch.ones(6, 2, dtype=torch.complex64)}, TypeError, r"mask: expected flags of a real dtype"),
    ({"rewards": torch.ones(6).to_sparse()}, TypeError, r"rewards: expected a dense tensor"),
    ({"mask": torch.ones(6, 2).to_sparse()}, TypeError, r"mask: expected a dense tensor"),
    ({"unbiased": 1}, TypeError, r"unbiased: expected a bool, got int"),
    ({"baseline": 1}, TypeError, r"baseline: expected 'mean' or 'leave_one_out', got int"),
    ({"scale": True}, TypeError, r"scale: expected 'std' or None, got bool"),
    ({"eps": None}, TypeError, r"eps: expected a float, got None"),
    ({"eps": torch.tensor(0.1)}, TypeError, r"eps: expected a float, got Tensor; convert it with float\(\)"),
    ({"baseline": "median"}, ValueError, r"baseline: expected 'mean' or 'leave_one_out', got 'median'"),
    ({"baseline": None}, ValueError, r"baseline: expected 'mean' or 'leave_one_out', got None"),
    ({"scale": "batch"}, ValueError, r"scale: expected 'std' or None, got 'batch'"),
    ({"eps": -1e-6}, ValueError, r"eps: expected a number >= 0, got -1e-06"),
    ({"eps": NAN}, ValueError, r"eps: expected a number >= 0, got nan"),
    ({"rewards": torch.ones(())}, ValueError, r"rewards: expected shape \(num_responses,\), or .*, got \(\)"),
    ({"rewards": torch.ones(2, 3, 1)}, ValueError, r"rewards: expected .*, got \(2, 3, 1\)"),
    ({"group_ids": None}, ValueError, r"rewards: .* no group_ids, got \(6,\); pass group_ids, or rewards.unsqueeze"),
    ({"group_ids": torch.ones(5).long()}, ValueError, r"group_ids: expected shape \(6,\) like rewards, got \(5,\)"),
    ({"group_ids": torch.ones(6, 1).long()}, ValueError, r"group_ids: expected shape \(6,\) .* got \(6, 1\)"),
    ({"mask": torch.ones(())}, ValueError, r"mask: expected shape \(6,\) .*, got \(\)"),
    ({"mask": torch.ones(5, 2)}, ValueError, r"mask: expected .*, or \(6, num_tokens\), got \(5, 2\)"),
    ({"mask": torch.ones(6, 2, 2)}, ValueError, r"mask: expected .*, or \(6, num_tokens\), got \(6, 2, 2\)"),
    ({"group_ids": torch.ones(6, device="meta").long()}, RuntimeError, r"group_ids: expected a tensor on cpu.*meta"),
    ({"mask": torch.ones(6, 2, device="meta")}, RuntimeError, r"rewards: expected a tensor on meta like mask.*cpu"),
    ({"out": torch.ones(5)}, ValueError, r"out: expected shape \(6,\) like rewards, got \(5,\)"),
    (
        {"out": torch.ones(6), "mask": torch.ones(6, 2)},
        ValueError,
        r"out: expected shape \(6, 2\) like mask, got \(6,\)",
    ),
    ({"out": torch.ones(6).double()}, TypeError, r"out: expected torch.float32"),
    ({"out": torch.ones(1).expand(6)}, ValueError, r"out: expected memory of its own"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD_CALLS)
def test_a_bad_call_says_what_is_wrong(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as raised:
        call(**changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("of_tokens", [False, True])
def test_a_buffer_shares_no_memory_with_an_input(of_tokens: bool) -> None:
    whole = torch.ones(6, 4)
    rewards = whole[:, 0]
    mask = torch.ones(6, 2) if of_tokens else None
    with pytest.raises(ValueError, match="out: expected memory of its own, but it overlaps rewards"):
        call(rewards=rewards, mask=mask, out=whole[:, 0:2] if of_tokens else rewards)
    beside = whole[:, 1:3] if of_tokens else whole[:, 1]
    assert call(rewards=rewards, mask=mask, out=beside) is beside
    assert (whole[:, 0] == 1.0).all()


PROMOTIONS = [
    *((dtype, dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)),
    *((dtype, torch.float32) for dtype in (torch.int64, torch.uint8, torch.bool)),
]


@pytest.mark.parametrize(("dtype", "expected"), PROMOTIONS, ids=str)
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float64], ids=str)
def test_the_dtype_is_that_of_rewards(dtype: torch.dtype, expected: torch.dtype, mask_dtype: torch.dtype) -> None:
    rewards = torch.arange(6).to(dtype)
    assert call(rewards=rewards, mask=torch.ones(6, dtype=mask_dtype)).dtype == expected
    assert call(rewards=rewards, mask=torch.ones(6, 2, dtype=mask_dtype)).dtype == expected


def test_outputs_are_laid_out_like_what_they_are_shaped_like() -> None:
    turned = torch.arange(6.0).view(3, 2).t()
    assert compute_group_advantages(turned).stride() == turned.stride()
    # A mask of responses does not decide.
    assert compute_group_advantages(turned, mask=torch.ones(2, 3)).stride() == turned.stride()
    tokens = torch.ones(4, 6).t()
    assert call(mask=tokens).stride() == tokens.stride()
    assert call(mask=torch.ones(6, 1).expand(6, 4)).is_contiguous()
    assert compute_group_advantages(torch.ones(3, 1).expand(3, 5)).is_contiguous()


EMPTY = [
    ((0,), None),
    ((0, 4), None),
    ((4, 0), None),
    ((0,), (0,)),
    ((0,), (0, 5)),
    ((6,), (6, 0)),
    ((4, 0), (4, 0, 5)),
]


@pytest.mark.parametrize(("shape", "mask_shape"), EMPTY, ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_empty_tensors_give_empty_results(
    shape: tuple[int, ...], mask_shape: tuple[int, ...] | None, device: str
) -> None:
    rewards = torch.ones(shape, device=device)
    mask = None if mask_shape is None else torch.ones(mask_shape, device=device)
    advantages = compute_group_advantages(rewards, rewards.long(), mask)
    assert advantages.shape == (mask_shape or shape)
    assert advantages.device == rewards.device


def test_inputs_are_neither_changed_nor_returned() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, ids = torch.randn(6, generator=generator), torch.tensor([1, 0, 1, 2, 1, 0])
    for mask in (None, torch.ones(6), torch.ones(6, 2)):
        for scale in ("std", None):
            given = [x for x in (rewards, ids, mask) if x is not None]
            before = [x.clone() for x in given]
            compute_group_advantages(rewards, ids, mask, scale=scale).fill_(7.0)
            assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_a_negated_view_is_what_it_shows() -> None:
    rewards = torch.randn(6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    negated = torch._neg_view(rewards.real)
    assert torch.equal(call(rewards=negated), call(rewards=negated.clone().resolve_neg()))


def test_correctness_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_triton_returns.groups.api.CORRECTNESS_WARNINGS", True)
    poisoned = torch.tensor([1.0, NAN, 2.0, 3.0, 4.0, 5.0])
    with pytest.warns(UserWarning, match="rewards: holds NaN or infinities") as warned:
        call(rewards=poisoned)
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="group_ids: 2 of 4 groups have a single response"):
        call(group_ids=torch.tensor([1, 2, 3, 4, 1, 3]))
    with pytest.warns(UserWarning, match="rewards: 6 of 6 groups have a single response"):
        compute_group_advantages(torch.ones(6, 1))
    with pytest.warns(UserWarning, match="group_ids: 1 of 3 groups have a single response"):
        call(mask=torch.tensor([1, 0, 1, 1, 1, 1]))
    with pytest.warns(UserWarning, match="rewards: 1 of 1 groups have a single response"):
        compute_group_advantages(torch.ones(2, 2), mask=torch.tensor([[0, 0], [1, 0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()
        call(rewards=poisoned, group_ids=torch.zeros(6).long(), mask=poisoned.isfinite())
        compute_group_advantages(torch.ones(6, 2), mask=torch.ones(6, 2).tril(-1)[:, :1].expand(6, 2))
        call(rewards=torch.empty(0), group_ids=torch.empty(0).long())
        # There are no numbers to look at.
        compute_group_advantages(torch.empty(3, 1, device="meta"))


def test_without_being_asked_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(rewards=torch.full((6,), NAN), group_ids=torch.arange(6))
