"""normalize_advantages: advantages of mean 0 and standard deviation 1, over the steps that count."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rl_triton_core.engine.algorithm import Field, Signature
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.precision import widest_dtype
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_SIGNATURE = Signature(fields=(Field("advantages", required=True), Field("mask", flag=True)), row_fields=())


class Moments(NamedTuple):
    """How many, their mean and the sum of squared distances from it, each a tensor without axes."""

    n: Tensor
    mean: Tensor
    squares: Tensor


def normalize_advantages(
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    unbiased: bool = True,
    eps: float = 1e-8,
    shift_mean: bool = True,
) -> Tensor:
    """Give advantages mean 0 and standard deviation 1.

        (advantages - mean) / (sqrt(M2 / (n - unbiased)) + eps)      M2 = sum of (advantages - mean)**2

    over the n steps that the mask holds, of all ranks of a group. Advantages that are all equal, and a single one, say
    nothing of which action was better: they become 0 (with `shift_mean=False` they stay as they are), never a rounding
    error blown up by a vanishing deviation.

    Args:
        advantages: any shape; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32.
        mask: zero at elements that do not count, same shape, any dtype. They are not read, NaN included, and become 0.
        group: a process group whose ranks share the statistics: one all-gather of three numbers, in which every rank
            takes part, also one that has no element. None: those of this process alone.
        unbiased: divide by n - 1, else by n.
        eps: what is added to the standard deviation, a number that is not negative.
        shift_mean: subtract the mean; else only divide.

    Returns:
        Normalised advantages, in the shape and dtype of advantages.

    Raises:
        TypeError: an argument that is no dense tensor of a real dtype, or an eps that is no number.
        ValueError: shapes that differ, or a negative eps.
        RuntimeError: tensors on different devices.

    Numerics: statistics are held in float64 (float32 on devices without it), in two passes around one of the elements,
    and those of ranks are merged by Chan's formula. Nothing waits for the device. Differentiable in advantages.

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.

    Example:
        >>> import torch
        >>> from rl_triton_gae import normalize_advantages
        >>> normalize_advantages(torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([[1, 1], [1, 0]]))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    if isinstance(advantages, Tensor) and advantages.dim() == 0:
        raise ValueError("advantages: expected at least one dimension, got a tensor of shape ()")
    check_arguments(_SIGNATURE, (advantages, mask), (), 0)
    _check_eps(eps)
    dtype = _SIGNATURE.output_dtype((advantages, mask))
    wide = advantages.to(widest_dtype(advantages.new_empty(0, dtype=dtype)))
    valid = None if mask is None else mask != 0
    if valid is not None:
        # Before anything is computed: neither a NaN there nor its derivative gets further.
        wide = torch.where(valid, wide, 0.0)
    own = _moments(wide, valid)
    total = own if group is None else _merged(torch.stack(own), group)
    freedom = total.n - 1.0 if unbiased else total.n
    # A deviation of 0 is no number to divide by, nor one to take the root's derivative at.
    tells = (total.n >= 2.0) & (total.squares != 0.0)
    deviation = torch.where(tells, total.squares / torch.where(tells, freedom, 1.0), 1.0).sqrt()
    if shift_mean:
        normalised = torch.where(tells, (wide - total.mean) / (deviation + eps), 0.0)
    else:
        normalised = torch.where(tells, wide / (deviation + eps), wide)
    return (normalised if valid is None else torch.where(valid, normalised, 0.0)).to(dtype)


def _check_eps(eps: Any) -> None:
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(f"eps: expected a number that is not negative, got {type(eps).__name__}")
    if not float(eps) >= 0:
        raise ValueError(f"eps: expected a number that is not negative, got {eps}")


def _moments(x: Tensor, valid: Tensor | None) -> Moments:
    """Those of the valid elements."""
    if x.numel() == 0:
        nothing = x.sum()
        return Moments(nothing, nothing, nothing)
    # Around one of them, so that equal ones are exactly at their mean.
    if valid is None:
        around, count = x.detach().amax(), torch.full_like(x.detach().amax(), x.numel())
        distance = x - around
    else:
        count = valid.sum().to(x.dtype)
        around = torch.where(count > 0, torch.where(valid, x.detach(), -torch.inf).amax(), 0.0)
        distance = torch.where(valid, x - around, 0.0)
    mean = distance.sum() / count.clamp(min=1.0)
    from_mean = distance - mean
    if valid is not None:
        from_mean = torch.where(valid, from_mean, 0.0)
    return Moments(count, around + mean, from_mean.square().sum())


def _merged(own: Tensor, group: Any) -> Moments:
    """Those of all ranks together."""
    from rl_triton_core.distributed import all_gather

    counts, means, squares = all_gather(own, group).unbind(-1)
    there = counts > 0
    # Around one of the means again, for the same reason.
    around = torch.where(there, means.detach(), -torch.inf).amax()
    around = torch.where(there.any(), around, 0.0)
    distances = torch.where(there, means - around, 0.0)
    count = counts.sum()
    mean = (counts * distances).sum() / count.clamp(min=1.0)
    between = (counts * torch.where(there, distances - mean, 0.0).square()).sum()
    return Moments(count, around + mean, squares.sum() + between)
