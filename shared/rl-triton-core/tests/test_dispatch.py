"""Which path a call takes, and what is recorded on it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from rl_triton_core import api
from rl_triton_core.engine.dispatch import run
from torch import Tensor

TARGETS = dataclasses.replace(api._FORWARD, differentiable=False)


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
