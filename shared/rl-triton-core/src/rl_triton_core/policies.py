"""What policies are made of: warnings about probabilities and actions that are rarely meant.

They look into the tensors, so they may wait for the device. Tensors that hold no numbers to look at (on the meta
device, or under a transform or a mode) are passed over.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from rl_triton_core.engine.modes import is_watched


def warn_of_probabilities(name: str, probabilities: Tensor, *, zero_is_one: bool) -> None:
    """Say that a tensor holds numbers that are no probabilities; whether 0 is one is for the caller to say.

    Warns:
        UserWarning: a number outside (0, 1], or outside [0, 1] if `zero_is_one`.
    """
    if _hold_no_numbers(probabilities):
        return
    below = probabilities < 0 if zero_is_one else probabilities <= 0
    if bool((below | (probabilities > 1)).any()):
        _warn(f"{name}: holds a number outside {'[0, 1]' if zero_is_one else '(0, 1]'}, which is no probability")


def warn_of_actions(name: str, actions: Tensor, count: int) -> None:
    """Say that a tensor holds indices of actions that do not exist.

    Warns:
        UserWarning: an action outside [0, count).
    """
    if _hold_no_numbers(actions):
        return
    # Unsigned dtypes of more than 8 bits know no comparison.
    signed = actions.to(torch.int64)
    if bool(((signed < 0) | (signed >= count)).any()):
        _warn(f"{name}: holds an action outside [0, {count}), at which the result is NaN")


def _hold_no_numbers(tensor: Tensor) -> bool:
    return is_watched() or tensor.device.type == "meta" or torch.compiler.is_compiling()


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=4)
