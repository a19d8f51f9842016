"""Which path a call takes, and what is recorded on it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from rl_triton_core import api
from rl_triton_core.engine.dispatch import registered, run
from torch import Tensor

TARGETS = registered(dataclasses.replace(api._FORWARD, name="targets", differentiable=False))


def targets(inputs: Tensor) -> Tensor:
    return run(TARGETS, (inputs, torch.full_like(inputs, 0.5), None), (None,), 1)[0]


def test_targets_record_no_gradient() -> None:
    inputs = torch.ones(2, 3, requires_grad=True)
    y = targets(inputs)
    assert not y.requires_grad
    assert y.tolist() == [[1.0, 1.5, 1.75]] * 2
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(inputs.detach(), torch.ones(2, 3))
        assert torch.autograd.forward_ad.unpack_dual(targets(dual)).tangent is None
    assert torch.func.grad(lambda x: (x + targets(x)).sum())(inputs.detach()).tolist() == [[1.0] * 3] * 2
    assert torch.func.jvp(targets, (inputs.detach(),), (torch.ones(2, 3),))[1].tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("inputs_have_it", [True, False])
def test_any_argument_may_bring_the_axis_of_a_vmap(inputs_have_it: bool) -> None:
    many, one = torch.rand(3, 2, 5), torch.rand(2, 5)

    def scan(inputs: Tensor, initial: Tensor) -> Tensor:
        return api.segmented_scan(inputs, one, initial=initial)

    given = (many, one[:, 0]) if inputs_have_it else (one, many[:, :, 0])
    in_dims = (0, None) if inputs_have_it else (None, 0)
    expected = [scan(many[i], given[1]) if inputs_have_it else scan(one, given[1][i]) for i in range(3)]
    torch.testing.assert_close(torch.func.vmap(scan, in_dims)(*given), torch.stack(expected))


def halves(fields: Any, row_values: Any, numbers: Any, y: Tensor, dim: int) -> tuple[Tensor, ...]:
    return y, y / 2


TWO_OUTPUTS = registered(dataclasses.replace(api._FORWARD, name="halves", outputs=2, emit=halves))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded", "permuted"])
def test_every_output_is_laid_out_like_the_first_argument(layout: str) -> None:
    inputs = {
        "contiguous": torch.rand(4, 6),
        "transposed": torch.rand(6, 4).t(),
        "sliced": torch.rand(4, 12)[:, ::2],
        "expanded": torch.rand(1, 6).expand(4, 6),
        "permuted": torch.rand(2, 6, 3, 5).permute(3, 1, 0, 2),
    }[layout]
    decays = torch.full(inputs.shape, 0.5)
    outputs = run(TWO_OUTPUTS, (inputs, decays, None), (None,), 1)
    expected = api.segmented_scan(inputs, decays)
    torch.testing.assert_close(outputs, (expected, expected / 2))
    assert outputs[0].stride() == outputs[1].stride() == expected.stride()
    assert outputs[0].data_ptr() != outputs[1].data_ptr()


def test_every_output_of_nothing_and_of_no_numbers() -> None:
    for x in (torch.empty(0, 3), torch.empty(3, 0), torch.empty(3, 5, device="meta")):
        outputs = run(TWO_OUTPUTS, (x, x, None), (None,), 1)
        assert [y.shape for y in outputs] == [x.shape] * 2
        assert [y.device for y in outputs] == [x.device] * 2


def test_every_output_has_a_derivative() -> None:
    inputs, decays = (torch.rand(2, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def both(inputs: Tensor, decays: Tensor) -> tuple[Tensor, ...]:
        return run(TWO_OUTPUTS, (inputs, decays, None), (None,), 1)

    assert torch.autograd.gradcheck(both, (inputs, decays))
    many = torch.rand(3, 2, 5, dtype=torch.float64)
    mapped = torch.func.vmap(both, (0, None))(many, decays.detach())
    for i, outputs in enumerate(zip(*mapped, strict=True)):
        torch.testing.assert_close(outputs, both(many[i], decays.detach()))
