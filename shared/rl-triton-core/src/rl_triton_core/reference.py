"""The segmented scan as it is defined: a loop over time.

y[t] = inputs[t] + decays[t] * y[t-1], or y[t+1] where `reverse`; y[t] = inputs[t] at a reset.

And what the references of all backward recursions read flags with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor


def segmented_scan(
    inputs: Tensor,
    decays: Tensor,
    *,
    resets: Tensor | None = None,
    initial: Tensor | None = None,
    reverse: bool = False,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """y, computed step by step in `dtype`. Arguments as for `rl_triton_core.segmented_scan`."""
    x = inputs.movedim(time_dim, 0).to(dtype)
    w = decays.movedim(time_dim, 0).to(dtype)
    reset = torch.zeros_like(x, dtype=torch.bool) if resets is None else resets.movedim(time_dim, 0) != 0

    y = list(x)
    state = None if initial is None else initial.to(dtype)
    for t in reversed(range(x.shape[0])) if reverse else range(x.shape[0]):
        # Without `initial` nothing comes in at the open end, and the decay there is not read.
        y[t] = x[t] if state is None else torch.where(reset[t], x[t], x[t] + w[t] * state)
        state = y[t]
    return torch.stack(y).movedim(0, time_dim) if y else torch.empty_like(x).movedim(0, time_dim)


def ends(flags: Tensor, boundary: str, next_flag: Tensor | None) -> list[Tensor]:
    """Whether each step ended an episode, from flags with time first, as bools.

    A flag says so of its own step ("ends_at"), or of the one before it ("starts_at"; before step T that is the last).
    """
    is_set = [flag != 0 for flag in flags]
    if boundary == "starts_at" and is_set:
        is_set = [*is_set[1:], torch.zeros_like(is_set[0]) if next_flag is None else next_flag != 0]
    return is_set


class Boundaries(NamedTuple):
    """What follows each step, time first: lists with an entry per step, which has one for every row.

    Attributes:
        valid: whether the mask holds the step.
        terminated, truncated: whether its episode ends before the next valid step.
        at_end: whether neither does, and no valid step follows.
        source: the step whose continuation counts where the episode is cut off: the one with the flag, or the last one.
        own: the same, but the step itself where no flag stands behind it.
    """

    valid: list[Tensor]
    terminated: list[Tensor]
    truncated: list[Tensor]
    at_end: list[Tensor]
    source: list[Tensor]
    own: list[Tensor]

    def following(self, t: int, now: Tensor, before: Tensor) -> Tensor:
        """What the step before t finds behind it: of t if it is valid, else what t has found."""
        return torch.where(self.valid[t], now, before)

    def interrupted(self, t: int) -> Tensor:
        """Whether the episode goes on outside the window after step t, unless it terminated."""
        return self.truncated[t] | self.at_end[t]

    def continuation(
        self,
        t: int,
        next_value: Tensor,
        bootstrap_values: Tensor | None,
        last_value: Tensor | None,
        next_values: Tensor | None,
        time_dim: int,
    ) -> Tensor:
        """What follows step t if its episode did not terminate, in the precision of the next valid step's value."""
        if next_values is not None:
            return at(next_values.movedim(time_dim, 0), self.own[t]).to(next_value.dtype)
        outside = torch.zeros_like(next_value)
        if bootstrap_values is not None:
            outside = at(bootstrap_values.movedim(time_dim, 0), self.source[t]).to(next_value.dtype)
        elif last_value is not None:
            is_last = self.source[t] == len(self.source) - 1
            outside = torch.where(is_last, last_value.to(next_value.dtype), outside)
        return torch.where(self.interrupted(t), outside, next_value)


def boundaries(
    terminateds: Tensor,
    truncateds: Tensor | None,
    boundary: str,
    next_start: Any,
    time_dim: int,
    mask: Tensor | None = None,
) -> Boundaries:
    """Which steps ended, from flags under either convention, where a mask makes some steps transparent."""
    terminateds, first = terminateds.movedim(time_dim, 0), None
    behind = (next_start, None)
    if truncateds is not None:
        first, behind = truncateds.movedim(time_dim, 0), (None, None) if next_start is None else next_start
    terminated = ends(terminateds, boundary, behind[0])
    never = [torch.zeros_like(flag) for flag in terminated]
    truncated = never if first is None else ends(first, boundary, behind[1])
    is_valid = [~flag for flag in never] if mask is None else [flag != 0 for flag in mask.movedim(time_dim, 0)]

    steps = len(terminated)
    found = Boundaries(is_valid, *([*never] for _ in range(3)), *([*never] for _ in range(2)))
    if not steps:
        return found
    # What the step at hand would find behind it, had it no flag of its own.
    over, cut, end = never[0], never[0], ~never[0]
    source = torch.full(over.shape, steps - 1, device=over.device)
    has_flag = never[0]
    for t in reversed(range(steps)):
        flagged = terminated[t] | truncated[t]
        here = torch.full_like(source, t)
        over, cut = torch.where(flagged, terminated[t], over), torch.where(flagged, truncated[t], cut)
        end, source = end & ~flagged, torch.where(flagged, here, source)
        found.terminated[t], found.truncated[t], found.at_end[t], found.source[t] = over, cut, end, source
        found.own[t] = torch.where(has_flag & ~flagged, source, here)
        has_flag = (has_flag | flagged) & ~is_valid[t]
        over, cut, end = over & ~is_valid[t], cut & ~is_valid[t], end & ~is_valid[t]
    return found


def at(x: Tensor, steps: Tensor) -> Tensor:
    """The entries of x (time first) at one step for every row."""
    return x.gather(0, steps.unsqueeze(0)).squeeze(0)


# What has one value a sequence where sequences are packed, among the arguments of all functions.
OF_SEQUENCES = ("last_value", "initial", "seed_values")


@dataclass(frozen=True)
class SequencesApart:
    """The oracle for packed sequences: `oracle` on each of them apart, as on a single row, and 0 outside of them.

    `of_sequences` names what has a value a sequence and not one a step. At least one sequence has a step.
    """

    oracle: Callable[..., Any]
    of_sequences: tuple[str, ...] = OF_SEQUENCES

    def __call__(self, *, cu_seqlens: Tensor, time_dim: int = 0, **arguments: Any) -> Any:
        """The outputs for steps along axis 0. Arguments are named as the oracle's."""
        assert time_dim == 0
        tensors = {name: x for name, x in arguments.items() if isinstance(x, Tensor)}
        steps = next(iter(tensors.values())).shape[0]
        outputs: list[Tensor] = []
        bounds = cu_seqlens.tolist()
        for sequence, (first, end) in enumerate(pairwise(bounds)):
            if first == end:
                continue
            own = {n: x[sequence] if n in self.of_sequences else x[first:end] for n, x in tensors.items()}
            found = self.oracle(**arguments | own, time_dim=0)
            found = found if isinstance(found, tuple) else (found,)
            outputs = outputs or [x.new_zeros((steps, *x.shape[1:])) for x in found]
            for output, x in zip(outputs, found, strict=True):
                output[first:end] = x
        return tuple(outputs) if len(outputs) > 1 else outputs[0]
