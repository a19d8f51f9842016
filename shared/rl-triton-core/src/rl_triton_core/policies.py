"""What policies are made of: clipped ratios, and warnings about probabilities and actions that are rarely meant.

The warnings look into the tensors, so they may wait for the device. Tensors that hold no numbers to look at (on the
meta device, or under a transform or a mode) are passed over. `_policies_tile` clips in Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_triton_core.engine.environment import warn_caller
from rl_triton_core.engine.modes import holds_numbers


def clips(bound: float, dtype: torch.dtype) -> bool:
    """Whether a bound is one at all: not where the dtype does not reach it."""
    return bound <= torch.finfo(dtype).max


def clipped(ratio: Tensor, bound: float) -> Tensor:
    """min(bound, ratio), NaN where the ratio is NaN."""
    return ratio.clamp(max=bound) if clips(bound, ratio.dtype) else ratio


def warn_of_probabilities(name: str, probabilities: Tensor, *, zero_is_one: bool) -> None:
    """Say that a tensor holds numbers that are no probabilities; whether 0 is one is for the caller to say.

    Warns:
        UserWarning: a number outside (0, 1], or outside [0, 1] if `zero_is_one`.
    """
    if not holds_numbers(probabilities):
        return
    below = probabilities < 0 if zero_is_one else probabilities <= 0
    if bool((below | (probabilities > 1)).any()):
        warn_caller(f"{name}: holds a number outside {'[0, 1]' if zero_is_one else '(0, 1]'}, which is no probability")


def warn_of_actions(name: str, actions: Tensor, count: int) -> None:
    """Say that a tensor holds indices of actions that do not exist.

    Warns:
        UserWarning: an action outside [0, count).
    """
    if not holds_numbers(actions):
        return
    # Unsigned dtypes of more than 8 bits know no comparison.
    signed = actions.to(torch.int64)
    if bool(((signed < 0) | (signed >= count)).any()):
        warn_caller(f"{name}: holds an action outside [0, {count}), at which the result is NaN")
