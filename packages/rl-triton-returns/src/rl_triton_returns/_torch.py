"""The discounted return on whole tensors: the coefficients of its recursion, and its output.

    u     = rewards, plus gamma * continuation where an episode goes on outside the window
    decay = gamma, cut after an ended step

Whatever a boundary hides may be NaN, and so may its derivative: it is replaced before it is multiplied, never after.
"""

from __future__ import annotations

from rl_triton_core.boundaries import episode_ends, interrupted, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """u, decay and cut of G[t] = u[t] + decay[t] * G[t+1]."""
    rewards, terminateds, truncateds, bootstrap_values, gamma = fields
    (last_value,) = row_values
    assert rewards is not None and terminateds is not None
    ended, decay = episode_ends(terminateds, truncateds), numbers[0] if gamma is None else gamma
    if bootstrap_values is not None and truncateds is not None:
        hidden = terminateds | ~interrupted(terminateds, truncateds, dim)
        return rewards + _discounted(decay, bootstrap_values, hidden), decay, ended
    last = last_value if bootstrap_values is None else bootstrap_values.select(dim, -1)
    if last is None:
        return rewards, decay, ended
    u = rewards.clone()
    last_decay = decay.select(dim, -1) if isinstance(decay, Tensor) else decay
    u.select(dim, -1).add_(_discounted(last_decay, last, terminateds.select(dim, -1)))
    return u, decay, ended


def _discounted(decay: Tensor | float, continuation: Tensor, hidden: Tensor) -> Tensor:
    """gamma * continuation, and 0 where it is hidden."""
    return unless(hidden, continuation) * (unless(hidden, decay) if isinstance(decay, Tensor) else decay)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The returns: the scanned state itself."""
    return (y,)
