"""compute_group_advantages by its kernel against the oracle: on a GPU, and with small sizes in the interpreter."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest import mock

import pytest
import torch
from rl_triton_core.testing.calls import Draw, on_kernel_device
from rl_triton_core.testing.kernels import INTERPRETED, kernel_device, kernel_marks
from rl_triton_core.testing.tolerance import assert_within_rule
from rl_triton_returns import compute_group_advantages
from rl_triton_returns.groups import _launch, _torch, reference
from torch import Tensor

pytestmark = kernel_marks()
DEVICE = kernel_device()
# (responses, groups that ids are drawn from), (prompts, samples) and tokens.
WITH_IDS = [(1, 1), (5, 2), (13, 4)]
ROWS = [(1, 1), (3, 2), (2, 7), (5, 3)]
TOKENS = [1, 9, 16]
if not INTERPRETED:
    WITH_IDS += [(127, 16), (128, 1), (129, 129), (1000, 125), (1024, 128), (4097, 500)]
    ROWS += [(128, 8), (1, 1000), (1000, 1), (37, 64), (5, 129), (33, 127), (4096, 16)]
    TOKENS += [255, 1024, 1031]
OPTIONS: list[dict[str, Any]] = [
    {"baseline": baseline, "scale": scale, "unbiased": unbiased}
    for baseline, scale, unbiased in itertools.product(("mean", "leave_one_out"), ("std", None), (True, False))
    if unbiased or scale
]


def with_ids(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    responses, groups = size
    draw = Draw((responses,), dtype, seed=responses + groups)
    ids = torch.randint(0, groups, (responses,), generator=draw.generator) * 3 - 5
    return {"rewards": draw.numbers(), "group_ids": ids}


def in_rows(shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {"rewards": Draw(shape, dtype).numbers()}


def with_mask(arguments: dict[str, Any], *tokens: int) -> dict[str, Any]:
    """A mask of tokens, or of responses where no number of tokens is given."""
    shape = (*arguments["rewards"].shape, *tokens)
    return arguments | {"mask": Draw(shape, seed=len(shape)).flags("random", 0.6)}


def check(arguments: dict[str, Any], dtype: torch.dtype = torch.float32) -> Tensor:
    """Compute where kernels run, hold it against the oracle, and see to it that the whole-tensor form was not asked."""
    expected = reference.compute_group_advantages(**arguments)
    loop = reference.compute_group_advantages(**arguments, dtype=torch.float32)
    given = on_kernel_device(arguments)
    before = {name: x.clone() for name, x in given.items() if isinstance(x, Tensor)}
    with mock.patch.object(_torch, "compute", side_effect=AssertionError("not by the kernel")):
        advantages = compute_group_advantages(**given)
    assert_within_rule(advantages, expected, loop, dtype, time_dim=0)
    for name, x in before.items():
        torch.testing.assert_close(given[name], x, rtol=0, atol=0, equal_nan=True)
    return advantages


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", WITH_IDS, ids=str)
def test_ids(size: tuple[int, int], options: dict[str, Any]) -> None:
    check(with_ids(size) | options)
    check(with_mask(with_ids(size)) | options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows(shape: tuple[int, int], options: dict[str, Any]) -> None:
    check(in_rows(shape) | options)
    check(with_mask(in_rows(shape)) | options)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("arguments", [with_ids(WITH_IDS[-1]), in_rows(ROWS[2])], ids=["ids", "rows"])
def test_tokens(arguments: dict[str, Any], tokens: int) -> None:
    check(with_mask(arguments, tokens))


@pytest.mark.parametrize("programs", [1, 8], ids=["one program for all tokens", "several programs"])
def test_more_than_a_tile_of_each(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("OTHERS", 32), ("TOKENS", 32), ("PROGRAMS", programs)):
        monkeypatch.setattr(_launch, name, size)
    for arguments in (with_ids((7, 2)), with_ids((70, 3)), in_rows((2, 70))):
        check(with_mask(arguments))
        check(with_mask(arguments, 70))


def test_ids_in_two_dimensions() -> None:
    shape = ROWS[3] if INTERPRETED else (37, 64)
    ids = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0))
    check(with_mask(in_rows(shape) | {"group_ids": ids}))
    check(with_mask(in_rows(shape) | {"group_ids": ids}, 9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    if INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter truncates to bfloat16")
    check(with_ids(WITH_IDS[2], dtype), dtype)
    check(with_mask(in_rows(ROWS[2], dtype), 9), dtype)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64], ids=str)
def test_integers_are_rewards_and_flags(dtype: torch.dtype) -> None:
    arguments = with_ids(WITH_IDS[2])
    arguments["rewards"] = (arguments["rewards"] > 0).to(dtype)
    check(with_mask(arguments))
    check(with_mask(arguments) | {"mask": arguments["rewards"]})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_ids_of_any_integer_dtype(dtype: torch.dtype) -> None:
    arguments = with_ids(WITH_IDS[2])
    check(arguments | {"group_ids": (arguments["group_ids"] % 100).to(dtype)})


def test_ids_that_differ_in_their_last_bits_alone() -> None:
    arguments = with_ids(WITH_IDS[2])
    for offset in (2**62, -(2**62), 2**31):
        check(arguments | {"group_ids": arguments["group_ids"] + offset})


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_not_finite_stays_in_its_group(options: dict[str, Any], poison: float) -> None:
    for arguments in (with_ids(WITH_IDS[2]), in_rows(ROWS[3])):
        arguments["rewards"].view(-1)[3] = poison
        advantages = check(arguments | options)
        assert 0 < advantages.isnan().sum() < advantages.numel()
        of_tokens = with_mask(arguments, 9) | options
        assert not check(of_tokens)[of_tokens["mask"] == 0].isnan().any()


def test_what_a_mask_leaves_out_is_not_read() -> None:
    for arguments in (with_mask(with_ids(WITH_IDS[2])), with_mask(in_rows(ROWS[3]))):
        arguments["rewards"][~arguments["mask"]] = math.nan
        assert check(arguments).isfinite().all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_rewards_are_exactly_zero(options: dict[str, Any]) -> None:
    rewards = torch.full((11,), 0.1, dtype=torch.float64, device=DEVICE)
    rewards[-1] = 0.7
    ids = torch.tensor([0] * 3 + [1] * 7 + [2], device=DEVICE)
    assert (compute_group_advantages(rewards, ids, eps=0.0, **options) == 0).all()
    assert (compute_group_advantages(rewards[:10].view(2, 5), eps=0.0, **options) == 0).all()


def test_views_are_read_and_written_in_place() -> None:
    arguments = with_mask(in_rows(ROWS[2]), 16)
    expected = reference.compute_group_advantages(**arguments)
    loop = reference.compute_group_advantages(**arguments, dtype=torch.float32)
    given = on_kernel_device(arguments)
    rewards = torch.full((7, 5), math.nan, device=DEVICE)[:, 1::2].t()
    rewards.copy_(given["rewards"])
    apart = torch.zeros(2, 16, 7, 3, dtype=torch.bool, device=DEVICE)[..., 1].transpose(1, 2)
    odd = torch.zeros(2, 7, 19, dtype=torch.bool, device=DEVICE)[..., 2:18]
    for mask in (given["mask"], apart, odd):
        mask.copy_(given["mask"])
        whole = torch.full((2, 7, 40), -7.0, device=DEVICE)
        for out in (None, whole[..., 3:19], whole[..., ::2][..., :16]):
            whole.fill_(-7.0)
            advantages = compute_group_advantages(rewards, None, mask, out=out)
            assert_within_rule(advantages, expected, loop, torch.float32, time_dim=0)
            assert out is None or (whole != -7.0).sum() == out.numel()
    per_response = torch.full((2, 14), -7.0, device=DEVICE)
    compute_group_advantages(rewards, out=per_response[:, ::2])
    torch.testing.assert_close(per_response[:, ::2], compute_group_advantages(rewards))
    assert (per_response[:, 1::2] == -7.0).all()


def test_a_mask_may_be_expanded() -> None:
    arguments = with_ids(WITH_IDS[2])
    mask = torch.ones(13, 1, dtype=torch.bool, device=DEVICE).expand(13, 9)
    advantages = compute_group_advantages(**on_kernel_device(arguments), mask=mask)
    expected = compute_group_advantages(**on_kernel_device(arguments))
    assert torch.equal(advantages, expected.unsqueeze(-1).expand(13, 9))
    assert advantages.is_contiguous()


@pytest.mark.skipif(INTERPRETED, reason="many responses")
def test_results_are_the_same_from_run_to_run() -> None:
    given = on_kernel_device(with_mask(with_ids((4097, 500)), 33))
    first = compute_group_advantages(**given)
    assert all(torch.equal(compute_group_advantages(**given), first) for _ in range(20))


@pytest.mark.skipif(INTERPRETED, reason="many responses")
@pytest.mark.parametrize("tokens", [(), (5,)], ids=["responses", "tokens"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_that_are_sorted_agree_with_those_that_are_compared(
    options: dict[str, Any], tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = on_kernel_device(with_mask(with_ids((16384, 2048)), *tokens) | options)
    compared = compute_group_advantages(**given)
    monkeypatch.setattr(_launch, "MOST_PAIRS", 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        first, second = (compute_group_advantages(**given) for _ in range(2))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(first, second)
    torch.testing.assert_close(first, compared)


def test_what_is_too_much_for_pairs_is_not_compared() -> None:
    def serves(*shape: int, ids: bool = False, tokens: int | None = None) -> bool:
        rewards = torch.empty(shape, device="meta")
        mask = None if tokens is None else torch.empty(*shape, tokens, device="meta")
        return _launch.serves(rewards, rewards if ids else None, mask)

    assert serves(16384, ids=True)
    assert not serves(16385, ids=True)
    assert serves(4096, 256)
    assert not serves(1, 1 << 20)
    assert not serves(4, 4, tokens=2**31)


@pytest.mark.skipif(INTERPRETED, reason="compiles nothing")
def test_sizes_and_strides_compile_no_further_kernels() -> None:
    from rl_triton_returns.groups import _tile

    cache = _tile.group_advantages.device_caches[torch.cuda.current_device()][0]
    counts = []
    for responses in (2, 3, 16, 17, 64, 1000):
        for tokens in (8, 16, 9, 17):
            check(with_mask(with_ids((responses, 3)), tokens))
        counts.append(len(cache))
    assert counts[0] == counts[-1]
