"""normalize_advantages: advantages of mean 0 and standard deviation 1, over the steps that count."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from rl_triton_core.engine.algorithm import Field, Signature
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.modes import is_watched
from rl_triton_core.engine.operators import needs_derivative
from rl_triton_core.engine.prepared import kernel_serves
from torch import Tensor

from rl_triton_gae.normalization import _launch, _torch
from rl_triton_gae.normalization.options import Options

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_SIGNATURE = Signature(fields=(Field("advantages", required=True), Field("mask", flag=True)), row_fields=())


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
    and those of blocks and of ranks are merged by Chan's formula. On a GPU two kernels do it all; where a gradient is
    recorded, PyTorch's own. Nothing waits for the device, and results are bitwise the same from run to run.
    Differentiable in advantages.

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
    options = Options(group, unbiased, float(eps), shift_mean)
    dtype = _SIGNATURE.output_dtype((advantages, mask))
    if _is_for_kernels(advantages, mask):
        return _launch.launch(advantages, mask, options, dtype)
    return _torch.compute(advantages, mask, options, dtype)


def _is_for_kernels(advantages: Tensor, mask: Tensor | None) -> bool:
    """Whether there is something to compute that nobody watches or records, where the kernels can."""
    tensors = [advantages] if mask is None else [advantages, mask]
    if torch.compiler.is_compiling() or is_watched() or needs_derivative(tensors) or advantages.numel() == 0:
        return False
    return kernel_serves(tensors) and not any(x.is_neg() for x in tensors)


def _check_eps(eps: Any) -> None:
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(f"eps: expected a number that is not negative, got {type(eps).__name__}")
    if not float(eps) >= 0:
        raise ValueError(f"eps: expected a number that is not negative, got {eps}")
