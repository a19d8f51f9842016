"""Group advantages as an operator of PyTorch, `torch.ops.rl_triton.compute_group_advantages`, and what runs behind it.

The operator takes checked arguments: rewards, group ids, which responses count and which tokens are valid, and how
advantages are made of them. Advantages are targets: no gradient and no tangent is recorded through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rl_triton_core.engine.layout import empty_output, laid_out_like
from rl_triton_core.engine.precision import result_dtype
from rl_triton_core.engine.prepared import kernel_serves
from torch import Tensor

from rl_triton_returns.groups import _launch, _torch
from rl_triton_returns.groups.options import Options

_NAME = "compute_group_advantages"
_LIBRARY: Any = torch.library.Library("rl_triton", "FRAGMENT")  # type: ignore[no-untyped-call]


def call_operator(
    rewards: Tensor, group_ids: Tensor | None, counted: Tensor | None, tokens: Tensor | None, options: Options
) -> Tensor:
    """A checked call through the operator, for whoever wants to see it as one."""
    advantages: Tensor = _OPERATOR(rewards, group_ids, counted, tokens, *options)
    return advantages


def execute(
    rewards: Tensor,
    group_ids: Tensor | None,
    counted: Tensor | None,
    tokens: Tensor | None,
    options: Options,
    out: Tensor | None = None,
) -> Tensor:
    """A checked call that nobody watches: by the kernel where it serves. `out` is a checked buffer."""
    like = rewards if tokens is None else tokens
    if like.numel() == 0:
        return _unwritten(rewards, group_ids, counted, tokens) if out is None else out
    tensors = [x for x in (rewards, group_ids, counted, tokens, out) if x is not None]
    if kernel_serves(tensors) and _launch.serves(rewards, group_ids, tokens):
        advantages = _unwritten(rewards, group_ids, counted, tokens) if out is None else out
        return _launch.launch(rewards, group_ids, counted, tokens, options, advantages)
    with torch.no_grad():
        advantages = _torch.compute(rewards, group_ids, counted, tokens, options)
        return laid_out_like(advantages, like) if out is None else out.copy_(advantages)


def _implementation(
    rewards: Tensor, group_ids: Tensor | None, counted: Tensor | None, tokens: Tensor | None, *options: Any
) -> Tensor:
    return execute(rewards, group_ids, counted, tokens, Options(*options))


def _unwritten(
    rewards: Tensor, group_ids: Tensor | None, counted: Tensor | None, tokens: Tensor | None, *_: Any
) -> Tensor:
    return empty_output(rewards if tokens is None else tokens, result_dtype([rewards]))


def _without_derivative(keys: Any, *arguments: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return _OPERATOR.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def _one_by_one(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
    """vmap: a call for every entry, since equal ids of two entries are two groups."""

    def entry(place: int) -> Tensor:
        of_one = (x if d is None else x.select(d, place) for x, d in zip(arguments, in_dims, strict=True))
        advantages: Tensor = _OPERATOR(*of_one)
        return advantages

    return torch.stack([entry(place) for place in range(info.batch_size)]), 0


_LIBRARY.define(
    f"{_NAME}(Tensor rewards, Tensor? group_ids, Tensor? counted, Tensor? tokens, bool leave_one_out, "
    "bool standardize, bool unbiased, float eps) -> Tensor",
    # Outputs are laid out like an input, so a compiler must not change the layout of what it hands over.
    tags=(
        torch.Tag.pt2_compliant_tag,
        getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
    ),
)
_LIBRARY.impl(_NAME, _implementation, "CompositeExplicitAutograd")
_LIBRARY.impl(_NAME, _without_derivative, "Autograd", with_keyset=True)
torch.library.register_fake(f"rl_triton::{_NAME}", _unwritten, lib=_LIBRARY)
torch.library.register_vmap(f"rl_triton::{_NAME}", _one_by_one, lib=_LIBRARY)
_OPERATOR = torch.ops.rl_triton.compute_group_advantages.default
