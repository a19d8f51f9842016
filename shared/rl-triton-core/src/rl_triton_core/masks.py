"""Rewards beside a mask that leaves steps out."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_triton_core.api import segmented_scan
from rl_triton_core.engine.algorithm import Field, Signature
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.packing import packing_of
from rl_triton_core.engine.shift import of_next

_SIGNATURE = Signature(
    fields=(
        Field("rewards", required=True),
        Field("mask", flag=True, required=True),
        Field("dones", flag=True),
    ),
    row_fields=(),
)


def inside_sequences(cu_seqlens: Tensor, steps: Tensor, mask: Tensor | None = None) -> Tensor:
    """Which steps of `(total_steps, *)` belong to a packed sequence (and are held by the mask, if there is one).

    Returns:
        A bool tensor of the shape of `steps`.
    """
    inside = packing_of(cu_seqlens, steps, 0, reverse=True).inside
    return inside if mask is None else inside & (mask != 0)


def rewards_on_valid_steps(rewards: Tensor, mask: Tensor, dones: Tensor | None = None, *, time_dim: int = 1) -> Tensor:
    """Move rewards from steps that a mask leaves out to the last valid step before them.

    A function that is given `mask` reads no reward of a step that it leaves out: where the reward of a response stands
    at its last token, and that token is masked, it would be lost. Here it is added, undiscounted, to what the last
    valid step of the same episode has; a reward before the first one belongs to none, and is dropped.

    Args:
        rewards: r[t], t = 0 .. T-1. `(num_rows, seq_len)`, or any shape with its time axis named by `time_dim`; any
            real dtype. What no valid step gets may be anything, but a NaN that is moved arrives.
        mask: zero at the steps that are left out, same shape, any dtype.
        dones: non-zero at the step that ended an episode, same shape, any dtype; None if there is one episode a row.
        time_dim: the time axis; negative counts from the end.

    Returns:
        Rewards at valid steps, 0 elsewhere, in the dtype that segmented_scan gives (integers become float32).

    Raises:
        TypeError: an argument that is no dense tensor of a real dtype.
        ValueError: shapes that differ, or a time axis that is not there.
        RuntimeError: tensors on different devices.

    Source: a sum over each run of masked steps, by a segmented scan (Blelloch, "Prefix Sums and Their Applications",
    1990, section 1.5). Differentiable in rewards.

    Example:
        >>> import torch
        >>> from rl_triton_core.masks import rewards_on_valid_steps
        >>> rewards_on_valid_steps(torch.tensor([[0.0, 1.0, 0.0, 5.0]]), torch.tensor([[1, 1, 0, 0]]))
        tensor([[0., 6., 0., 0.]])
    """
    _, _, dim = check_arguments(_SIGNATURE, (rewards, mask, dones), (), time_dim)
    if rewards.shape[dim] == 0:
        return segmented_scan(rewards, torch.ones_like(rewards), time_dim=dim)
    valid = mask != 0
    # Behind a step there is nothing to collect if the next one is valid, or of another episode.
    stops = of_next(valid, torch.ones_like(valid.select(dim, 0)), dim)
    if dones is not None:
        stops = stops | (dones != 0)
    return segmented_scan(rewards, torch.ones_like(rewards), resets=stops, reverse=True, time_dim=dim).masked_fill(
        ~valid, 0
    )
