"""compute_gae inside PyTorch: gradients, transforms, modes, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rl_triton_gae import compute_gae
from torch import Tensor


def drawn(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = {name: torch.randn(2, 9, generator=generator, dtype=dtype) for name in ("rewards", "values")}
    return numbers | {"terminateds": torch.rand(2, 9, generator=generator) < 0.2}


@pytest.mark.parametrize("option", ["last_value", "bootstrap_values", "next_values", "gamma", "lambda_", "both"])
def test_gradients_of_every_real_input(option: str) -> None:
    fixed = {"terminateds": drawn()["terminateds"]}
    names, tensors = ["rewards", "values"], [drawn()["rewards"], drawn()["values"]]
    for name in ("gamma", "lambda_") if option == "both" else (option,):
        names.append(name)
        shape = (2,) if name == "last_value" else (2, 9)
        tensors.append(torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.8 + 0.1)
    if option in ("bootstrap_values", "next_values"):
        fixed["truncateds"] = torch.rand(2, 9, generator=torch.Generator().manual_seed(2)) < 0.2

    def function(*given: Tensor) -> Tensor:
        return compute_gae(**dict(zip(names, given, strict=True)), **fixed)

    leaves = [x.requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_transforms() -> None:
    given = drawn()

    def total(rewards: Tensor) -> Tensor:
        return compute_gae(rewards, given["values"], given["terminateds"]).sum()

    gradient = torch.func.grad(total)(given["rewards"])
    leaf = given["rewards"].clone().requires_grad_()
    total(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)

    many = torch.stack([given["rewards"], 2 * given["rewards"]])
    each = torch.func.vmap(lambda r: compute_gae(r, given["values"], given["terminateds"]))(many)
    expected = [compute_gae(r, given["values"], given["terminateds"]) for r in many]
    torch.testing.assert_close(each, torch.stack(expected))


def test_modes_and_parameters() -> None:
    given = drawn()
    expected = compute_gae(**given)
    with torch.inference_mode():
        torch.testing.assert_close(compute_gae(**given), expected)
    parameter = torch.nn.Parameter(given["values"])
    with torch.no_grad():
        detached = compute_gae(given["rewards"], parameter, given["terminateds"])
    torch.testing.assert_close(detached, expected)
    assert not detached.requires_grad
    assert compute_gae(given["rewards"], parameter, given["terminateds"]).requires_grad


def test_meta_tensors_have_no_values() -> None:
    shapes: dict[str, Any] = {name: x.to("meta") for name, x in drawn().items()}
    advantages = compute_gae(**shapes)
    assert advantages.is_meta
    assert advantages.shape == (2, 9)


def test_compiles() -> None:
    given = drawn(torch.float32)
    compiled = torch.compile(compute_gae, backend="eager")
    torch.testing.assert_close(compiled(**given), compute_gae(**given))
