"""Rollouts of vector environments that reset themselves: which steps ended, and what each continues with."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_triton_core.boundaries import episode_ends, interrupted
from rl_triton_core.engine.algorithm import Field, Signature
from rl_triton_core.engine.arguments import check_arguments
from rl_triton_core.engine.shift import of_next, of_previous

_MODES = {"NEXT_STEP": "NextStep", "SAME_STEP": "SameStep", "DISABLED": "Disabled"}

_SIGNATURE = Signature(
    fields=(
        Field("values", required=True),
        Field("terminations", flag=True, required=True),
        Field("truncations", flag=True, required=True),
        Field("final_values"),
    ),
    row_fields=(Field("last_value", required=True), Field("previous_done", flag=True)),
)


class Rollout(NamedTuple):
    """What the functions of rl-triton take of a rollout, shaped like its values.

    Attributes:
        terminateds: where nothing follows, as bools.
        truncateds: where an episode was cut off, as bools.
        bootstrap_values: V of the final observation at truncated steps, V(s_T) in the last column unless that step
            ended, 0 elsewhere.
        valid: False at steps that no episode has: leave them out of every loss and statistic.
    """

    terminateds: Tensor
    truncateds: Tensor
    bootstrap_values: Tensor
    valid: Tensor


def from_gymnasium(
    terminations: Tensor,
    truncations: Tensor,
    values: Tensor,
    *,
    mode: Any,
    last_value: Tensor,
    final_values: Tensor | None = None,
    previous_done: Tensor | None = None,
    time_dim: int = 1,
) -> Rollout:
    """Read the flags of a `gymnasium.vector` rollout in the sense of rl-triton, whatever resets its environments.

    Row t of a rollout is one call of `step`: taken at observation t, whose value is `values[t]`, it gave reward t and
    the flags t. What observation t+1 is after an episode ended at row t depends on the mode:

        NEXT_STEP    the final one; the call at row t+1 ignores its action, gives no reward and resets. Row t+1 is no
                     step of any episode: it is not `valid`, and flagged as terminated, so that nothing crosses it
        SAME_STEP    that of the next episode; the final one is in the infos, and its value in `final_values`
        DISABLED     the final one, as long as nobody resets; who does by hand passes `final_values`

    Args:
        terminations: the flags that `step` returned, t = 0 .. T-1. `(num_envs, seq_len)`, or any shape with its time
            axis named by `time_dim`, any dtype.
        truncations: likewise, same shape.
        values: V of observation t, same shape, any real dtype.
        mode: the `AutoresetMode` that the environments are in (`envs.metadata["autoreset_mode"]`), or its name.
        last_value: V of observation T, per row: the shape of values without its time axis. Not read where the last
            step ended and its final observation is in `final_values`.
        final_values: V of the final observation at truncated steps, same shape as values; other entries are ignored.
            Required for SAME_STEP, where observation t+1 is not the final one; not taken for NEXT_STEP, where it is.
        previous_done: whether the step before the first one ended an episode, per row, any dtype: the `done` of the
            last row of the window before. Taken for NEXT_STEP alone; None after `reset`.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.

    Returns:
        Flags, bootstrap values and the mask of valid steps, on the device of values.

    Raises:
        TypeError: an argument that is no dense tensor of a real dtype, or a mode that is no mode's name.
        ValueError: shapes that differ, a mode that does not exist, or arguments that do not belong to the mode.
        RuntimeError: tensors on different devices.

    Source: the three modes are those of `gymnasium.vector.AutoresetMode`, Gymnasium 1.1 and later.

    Example:
        >>> import torch
        >>> from rl_triton_core.autoreset import from_gymnasium
        >>> rollout = from_gymnasium(
        ...     terminations=torch.tensor([[False, False, False, False]]),
        ...     truncations=torch.tensor([[False, True, False, False]]),
        ...     values=torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        ...     mode="NEXT_STEP",
        ...     last_value=torch.tensor([5.0]),
        ... )
        >>> rollout.valid
        tensor([[ True,  True, False,  True]])
        >>> rollout.bootstrap_values
        tensor([[0., 3., 0., 5.]])
    """
    mode = _mode(mode)
    if mode == "SAME_STEP" and final_values is None:
        raise ValueError("final_values: expected a torch.Tensor for SAME_STEP, where no observation is final, got None")
    if mode == "NEXT_STEP" and final_values is not None:
        raise ValueError("final_values: expected None for NEXT_STEP, where observation t+1 is the final one")
    if mode != "NEXT_STEP" and previous_done is not None:
        raise ValueError(f"previous_done: expected None for {mode}, where no step is left out")
    fields = (values, terminations, truncations, final_values)
    _, _, dim = check_arguments(_SIGNATURE, fields, (last_value, previous_done), time_dim)
    terminateds, truncateds = terminations != 0, truncations != 0
    valid = torch.ones_like(terminateds)
    if values.numel() == 0:
        return Rollout(terminateds, truncateds, torch.zeros_like(values), valid)
    if mode == "NEXT_STEP":
        before = None if previous_done is None else previous_done != 0
        valid = ~of_previous(episode_ends(terminateds, truncateds), before, dim)
        terminateds, truncateds = terminateds | ~valid, truncateds & valid
    continuation = of_next(values, last_value, dim)
    if final_values is not None:
        continuation = torch.where(truncateds, final_values, continuation)
    bootstrap_values = torch.where(interrupted(terminateds, truncateds, dim) & ~terminateds, continuation, 0)
    return Rollout(terminateds, truncateds, bootstrap_values, valid)


def _mode(mode: Any) -> str:
    """The name of a mode."""
    name = getattr(mode, "name", mode)
    expected = ", ".join(_MODES)
    if not isinstance(name, str):
        raise TypeError(
            f"mode: expected a gymnasium.vector.AutoresetMode or one of {expected}, got {type(mode).__name__}"
        )
    for known, value in _MODES.items():
        if name in (known, value):
            return known
    raise ValueError(f"mode: expected one of {expected}, got {name!r}")
