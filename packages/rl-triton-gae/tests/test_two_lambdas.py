"""compute_gae with another lambda for the targets than for the advantages, on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import Draw, FlagsAtStarts, assert_obeys_rule, with_flags_of_next, with_mask
from rl_triton_core.testing.inside_pytorch import CHECKS
from rl_triton_gae import compute_gae, reference
from torch import Tensor

SHAPE = (3, 50)
LAMBDAS = ("numbers", "number, per step", "per step, number", "per step")


def drawn(kinds: str = "numbers", dtype: torch.dtype = torch.float32, shape: tuple[int, int] = SHAPE) -> dict[str, Any]:
    """Arguments of (rows, steps)."""
    draw = Draw(shape, dtype)
    arguments: dict[str, Any] = {name: draw.numbers() for name in ("rewards", "values", "bootstrap_values")}
    arguments |= {name: draw.flags("random") for name in ("terminateds", "truncateds")}
    lambda_, targets_lambda = draw.numbers().sigmoid(), draw.numbers().sigmoid()
    return arguments | {
        "gamma": 0.97 if "number" in kinds else draw.numbers().sigmoid(),
        "lambda_": 0.9 if kinds.startswith("number") else lambda_,
        "targets_lambda": 1.0 if kinds.endswith(("numbers", "number")) else targets_lambda,
    }


@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kinds", LAMBDAS)
def test_against_the_oracle(kinds: str, dtype: torch.dtype, masked: bool) -> None:
    arguments = drawn(kinds, dtype)
    given = with_mask(arguments) if masked else arguments
    functions = [partial(f, return_targets=True) for f in (compute_gae, reference.compute_gae)]
    assert_obeys_rule(*functions, given, dtype, device="cpu")
    assert_obeys_rule(*(FlagsAtStarts(f) for f in functions), with_flags_of_next(given), dtype, device="cpu")


def test_advantages_and_targets_are_those_of_a_call_for_each() -> None:
    arguments = drawn(dtype=torch.float64)
    targets_lambda = arguments.pop("targets_lambda")
    advantages, targets = compute_gae(**arguments, return_targets=True, targets_lambda=targets_lambda)
    expected, _ = compute_gae(**arguments, return_targets=True)
    _, expected_targets = compute_gae(**arguments | {"lambda_": targets_lambda}, return_targets=True)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(targets, expected_targets)
    assert (targets - advantages - arguments["values"]).abs().max() > 0.1
    normalized, same = compute_gae(**arguments, return_targets=True, targets_lambda=targets_lambda, normalize=True)
    torch.testing.assert_close(same, targets, rtol=0, atol=0)
    assert normalized.std().item() == pytest.approx(1.0)


@pytest.mark.parametrize("kinds", LAMBDAS)
def test_derivatives_are_the_oracles(kinds: str) -> None:
    arguments = drawn(kinds, torch.float64, (2, 9))
    names = [name for name, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()]
    weights = torch.randn(2, 2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def gradients(function: Any) -> tuple[Tensor, ...]:
        inputs = [arguments[name].requires_grad_() for name in names]
        outputs = torch.stack(function(**arguments, return_targets=True))
        return torch.autograd.grad((outputs * weights).sum(), inputs)

    for actual, expected in zip(gradients(compute_gae), gradients(reference.compute_gae), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("names", [("rewards", "values", "terminateds", "last_value", "targets_lambda")])
@CHECKS
def test_inside_pytorch(check: Any, names: tuple[str, ...]) -> None:
    check(partial(compute_gae, return_targets=True), names)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"return_targets": False}, ValueError, "targets_lambda: expected None without return_targets=True"),
        ({"targets_lambda": 1.5}, ValueError, r"targets_lambda: expected a number in \[0, 1\], got 1.5"),
        ({"targets_lambda": torch.ones(2, 2)}, ValueError, r"targets_lambda: expected shape \(3, 50\) like rewards"),
        ({"targets_lambda": "all"}, TypeError, "targets_lambda: expected a float or a torch.Tensor, got str"),
    ],
)
def test_errors(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compute_gae(**drawn() | {"return_targets": True} | changed)
