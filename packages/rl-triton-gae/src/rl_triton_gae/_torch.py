"""GAE on whole tensors: the coefficients of its recursion, and its outputs.

    u     = rewards - values + gamma * continuation
    decay = gamma * lambda_, cut after an ended step

Whatever a boundary hides may be NaN, and so may its derivative: it is replaced before it is multiplied, never after.
"""

from __future__ import annotations

from rl_triton_core.boundaries import add_discounted, continuations, episode_ends, interrupted, unless
from rl_triton_core.engine.algorithm import Numbers, OptionalTensors
from torch import Tensor


def coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """u, decay and cut of A[t] = u[t] + decay[t] * A[t+1]."""
    rewards, values, terminateds, truncateds, bootstrap_values, next_values, gamma, lambda_ = fields
    (last_value,) = row_values
    assert rewards is not None and values is not None and terminateds is not None
    parts = continuations(values, terminateds, truncateds, bootstrap_values, last_value, next_values, dim)
    u = add_discounted(rewards - values, parts, terminateds, gamma, numbers[0])
    return u, _decay(fields, lambda_, numbers[0], numbers[1], dim), episode_ends(terminateds, truncateds)


def coefficients_with_targets_lambda(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, tuple[Tensor | float, Tensor | float], Tensor | None]:
    """The same for two recursions, with a decay each: the second is made of targets_lambda."""
    u, decay, cut = coefficients(fields[:8], row_values, numbers[:2], dim)
    return u, (decay, _decay(fields, fields[8], numbers[0], numbers[2], dim)), cut


def _decay(
    fields: OptionalTensors, lambda_: Tensor | None, gamma_number: float, lambda_number: float, dim: int
) -> Tensor | float:
    """gamma * lambda_, where the numbers stand for what is no tensor.

    The scan reads no decay at a cut or in the last column; gamma is selected so that neither it nor lambda_ meets the
    NaN of the other in the derivative.
    """
    _, _, terminateds, truncateds, _, _, gamma, *_ = fields
    if gamma is None and lambda_ is None:
        return gamma_number * lambda_number
    per_step: Tensor | float = gamma_number
    if gamma is not None:
        assert terminateds is not None
        per_step = unless(episode_ends(terminateds, truncateds) | interrupted(terminateds, truncateds, dim), gamma)
    return per_step * (lambda_number if lambda_ is None else lambda_)


def emit(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The advantages: the scanned state itself."""
    return (y,)


def emit_with_targets(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: Tensor, dim: int
) -> tuple[Tensor, ...]:
    """The advantages, and with the values added to them the targets of the value function."""
    values = fields[1]
    assert values is not None
    return y, y + values


def emit_with_targets_lambda(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, y: tuple[Tensor, Tensor], dim: int
) -> tuple[Tensor, ...]:
    """The advantages, and the targets made of those of the second recursion."""
    values = fields[1]
    assert values is not None
    return y[0], y[1] + values
