"""warmup: compile ahead, so that neither the first step nor a capture has to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def warmup(function: Callable[..., Any], *arguments: Any, device: torch.device | str = "cuda", **keywords: Any) -> None:
    """Call a function once on tensors like those given, so that later calls find everything compiled and loaded.

    What is compiled depends on shapes, strides, dtypes, on which arguments are there, and on which of them require a
    gradient: of each tensor only these count, so meta tensors do. Zeros take their place on `device`.

    Args:
        function: any function of rl-triton, or one that calls some.
        arguments: what it will be called with; for a tensor also one on the meta device.
        device: where the calls will be made.
        keywords: more of the same, by name.

    Returns:
        Nothing; what was computed is dropped.

    Raises:
        Exception: whatever the call itself raises about these shapes, dtypes and numbers.

    Example:
        >>> import torch
        >>> from rl_triton_core import segmented_scan, warmup
        >>> x = torch.empty(64, 128, device="meta")
        >>> warmup(segmented_scan, x, x, device="cpu")
    """

    def in_place_of(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        zeros = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).zero_()
        return zeros.requires_grad_(value.requires_grad)

    outputs = function(
        *(in_place_of(value) for value in arguments), **{name: in_place_of(value) for name, value in keywords.items()}
    )
    recorded = [y for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if y.requires_grad]
    if recorded:
        # Gradients of a loss have a number per step each; those of a sum are one number, expanded: other kernels.
        torch.autograd.backward(recorded, [torch.zeros_like(y) for y in recorded], retain_graph=True)
        torch.autograd.backward(recorded, [y.new_zeros(()).expand_as(y) for y in recorded])
