"""segmented_scan inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from rl_triton_core import segmented_scan
from rl_triton_core.testing.gpu import CHECKS as GPU_CHECKS
from rl_triton_core.testing.integration import (
    assert_compiles_once,
    assert_forward_mode_agrees,
    assert_is_one_operator,
    assert_jacobians_agree,
    assert_maps,
    assert_records_where_asked,
    assert_traces,
    assert_writes_into_buffers,
    drawn_by_name,
)
from torch import Tensor

CALLS = (("inputs", "decays"), ("inputs", "decays", "resets", "initial"))
DIRECTIONS = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


@DIRECTIONS
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_is_one_operator(names: tuple[str, ...], reverse: bool) -> None:
    assert_is_one_operator(functools.partial(segmented_scan, reverse=reverse), drawn_by_name(names, 9))


@DIRECTIONS
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_compiles_once(names: tuple[str, ...], reverse: bool) -> None:
    scan = functools.partial(segmented_scan, reverse=reverse)
    assert_compiles_once(scan, lambda steps: drawn_by_name(names, steps))


@DIRECTIONS
@pytest.mark.parametrize("name", CALLS[1])
def test_transforms_of_every_argument(name: str, reverse: bool) -> None:
    given = drawn_by_name(CALLS[1], 9)

    def one(x: Tensor) -> Tensor:
        return segmented_scan(**(given | {name: x}), reverse=reverse)

    x = given[name]
    assert_maps(one, torch.stack([x, x.flip(0), x.roll(1, -1)]))
    if name == "resets":
        return
    assert_forward_mode_agrees(one, x)
    assert_records_where_asked(functools.partial(segmented_scan, reverse=reverse), given, name)


def test_jacobians_and_hessians() -> None:
    given = drawn_by_name(CALLS[1], 9)
    assert_jacobians_agree(lambda x: segmented_scan(**(given | {"decays": x})), given["decays"])


@DIRECTIONS
def test_tracing_looks_at_no_number(reverse: bool) -> None:
    given = drawn_by_name(CALLS[1], 9)
    assert_traces(
        lambda inputs, decays, resets, initial: segmented_scan(
            inputs, decays, resets=resets, initial=initial, reverse=reverse
        ),
        list(given.values()),
    )


@DIRECTIONS
@pytest.mark.parametrize("names", CALLS, ids="-".join)
def test_writes_into_buffers(names: tuple[str, ...], reverse: bool) -> None:
    assert_writes_into_buffers(functools.partial(segmented_scan, reverse=reverse), drawn_by_name(names, 9))


@pytest.mark.gpu
@DIRECTIONS
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@pytest.mark.parametrize("check", GPU_CHECKS)
def test_on_a_gpu(names: tuple[str, ...], reverse: bool, check: Callable[..., None]) -> None:
    check(functools.partial(segmented_scan, reverse=reverse), drawn_by_name(names, 300))
