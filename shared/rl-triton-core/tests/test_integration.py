"""segmented_scan inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from rl_triton_core import segmented_scan
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_core.testing.integration import (
    assert_forward_mode_agrees,
    assert_jacobians_agree,
    assert_maps,
    assert_records_where_asked,
    assert_traces,
    drawn_by_name,
)
from torch import Tensor

CALLS = (("inputs", "decays"), ("inputs", "decays", "resets", "initial"))
DIRECTIONS = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


@DIRECTIONS
@pytest.mark.parametrize("names", CALLS, ids="-".join)
@CHECKS
def test_inside_pytorch(check: Callable[..., None], names: tuple[str, ...], reverse: bool) -> None:
    check(functools.partial(segmented_scan, reverse=reverse), names)


@pytest.mark.parametrize("decay", ["per step", "number"])
@pytest.mark.parametrize("name", ["scan", "scan_reverse"])
def test_the_scan_of_derivatives_is_a_sound_operator(name: str, decay: str) -> None:
    inputs, decays, resets = drawn_by_name(CALLS[1][:3], 9).values()
    operator = getattr(torch.ops.rl_triton, name).default
    per_step, number = (decays, 0.0) if decay == "per step" else (None, 0.5)
    torch.library.opcheck(operator, (inputs, per_step, resets, number, 1))


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
