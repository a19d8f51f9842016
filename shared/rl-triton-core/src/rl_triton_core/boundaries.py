"""What flags mean: episode ends, and the value that a step continues with.

A flag stands at the step that ends an episode, unless a call says that it stands at the first step of the next one
(`boundary="starts_at"`); it is then moved before anything else here is asked. A terminated step continues with 0, a
truncated one with the value of the state that was cut off; both at once is a termination. `_boundaries_tile` says the
same to Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rl_triton_core.engine.algorithm import Algorithm, with_flags_at_starts
from rl_triton_core.engine.arguments import check_choice, check_exclusive
from rl_triton_core.engine.dispatch import registered
from rl_triton_core.engine.environment import warn_caller
from rl_triton_core.engine.modes import holds_numbers
from rl_triton_core.engine.packing import packing_of
from rl_triton_core.engine.shift import of_next, of_previous

Part: TypeAlias = Callable[[Tensor], Tensor]

# Where a flag stands: at the step that ends an episode, or at the first step of one.
FLAG_CONVENTIONS = ("ends_at", "starts_at")


def check_boundary(boundary: Any) -> None:
    """Check that an argument named boundary is one of the two flag conventions.

    Raises:
        TypeError: not a str.
        ValueError: another str.
    """
    check_choice("boundary", boundary, FLAG_CONVENTIONS)


class FlagConventions(NamedTuple):
    """A backward algorithm under both conventions, registered."""

    ends_at: Algorithm
    starts_at: Algorithm

    @classmethod
    def of(cls, algorithm: Algorithm) -> FlagConventions:
        """Both forms of an algorithm whose flags stand at the steps that end episodes."""
        return cls(registered(algorithm), registered(with_flags_at_starts(algorithm), packs=False))


def flags_behind(boundary: Any, next_start: Any, truncateds: Any) -> tuple[Any, ...]:
    """The flags of step T, one for terminateds and one for truncateds, under `boundary="starts_at"`.

    Args:
        boundary: the argument of that name.
        next_start: the argument of that name: a flag a row, or a pair of them where `truncateds` are given.
        truncateds: the argument of that name, or None.

    Raises:
        TypeError: a boundary that is no str, or one flag where a pair is expected, or a pair where one is.
        ValueError: a boundary that is no convention, a pair of another length, or flags of step T under "ends_at".
    """
    check_boundary(boundary)
    if next_start is None:
        return None, None
    if boundary == "ends_at":
        raise ValueError('next_start: expected None with boundary="ends_at", where no flag of step T is read')
    if truncateds is None:
        if isinstance(next_start, (tuple, list)):
            raise TypeError(
                f"next_start: expected one tensor, as there are no truncateds, got {type(next_start).__name__} of "
                f"{len(next_start)}"
            )
        return next_start, None
    if not isinstance(next_start, (tuple, list)):
        raise TypeError(
            "next_start: expected a pair of tensors, for terminateds and for truncateds, got "
            f"{type(next_start).__name__}"
        )
    if len(next_start) != 2:
        raise ValueError(f"next_start: expected a pair of tensors, got {len(next_start)}")
    return tuple(next_start)


def check_continuation(bootstrap_values: Any, last_value: Any, next_values: Any) -> None:
    """Check that at most one argument says how truncated steps and the last column continue.

    Raises:
        ValueError: more than one of them was given.
    """
    if bootstrap_values is not None or next_values is not None:
        check_exclusive(bootstrap_values=bootstrap_values, last_value=last_value, next_values=next_values)


def warn_of_truncations(
    truncateds: Any, bootstrap_values: Any, next_values: Any = None, *, takes_next_values: bool = True
) -> None:
    """Say that truncated steps inside the window have nothing to continue with, if that is so.

    A function that takes no `next_values` says so, and is not told to pass them.

    Warns:
        UserWarning: decided from the arguments alone.
    """
    if truncateds is not None and bootstrap_values is None and next_values is None:
        alternative = " or next_values" if takes_next_values else ""
        warn_caller(
            "truncateds without bootstrap_values: truncated steps inside the window continue with 0, as if they "
            f"had terminated; pass bootstrap_values (V of the final observation at truncated steps){alternative}",
        )


def episode_ends(terminateds: Tensor, truncateds: Tensor | None) -> Tensor:
    """Where an episode is over, as a bool tensor."""
    return terminateds if truncateds is None else terminateds | truncateds


def interrupted(terminateds: Tensor, truncateds: Tensor | None, dim: int) -> Tensor:
    """Where an episode goes on outside the window unless it terminated: truncations and the last column, as bools."""
    steps = torch.zeros_like(terminateds) if truncateds is None else truncateds.clone()
    steps.select(dim, -1).fill_(True)
    return steps


def continuations(
    values: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    bootstrap_values: Tensor | None,
    last_value: Tensor | None,
    next_values: Tensor | None,
    dim: int,
) -> list[tuple[Part, Tensor]]:
    """V(s_{t+1}) after every step, 0 after a termination, in parts: a view onto the columns, and the values there.

    What a termination hides is selected away here already: neither it nor its derivative gets further.
    """
    if next_values is not None:
        return [(lambda x: x, unless(terminateds, next_values))]
    inside, in_last_column, ahead = columns(values.shape[dim], dim)
    following, hidden = ahead(values), inside(terminateds)
    if truncateds is not None and bootstrap_values is not None:
        following = torch.where(inside(truncateds), inside(bootstrap_values), following)
    elif truncateds is not None:
        hidden = hidden | inside(truncateds)
    parts: list[tuple[Part, Tensor]] = [(inside, unless(hidden, following))]
    last = last_value if bootstrap_values is None else in_last_column(bootstrap_values)
    if last is None:
        # Not left out: a discount of NaN makes NaN of 0 as well.
        parts.append((in_last_column, torch.zeros_like(in_last_column(values))))
    else:
        parts.append((in_last_column, unless(in_last_column(terminateds), last)))
    return parts


def columns(steps: int, dim: int) -> tuple[Part, Part, Part]:
    """Views of a tensor of so many steps: all columns but the last, the last one, and what is ahead of the first."""
    inner = steps - 1
    return (
        lambda x: x.narrow(dim, 0, inner),
        lambda x: x.select(dim, -1),
        lambda x: x.narrow(dim, 1, inner),
    )


def add_discounted(
    u: Tensor, parts: Iterable[tuple[Part, Tensor]], terminateds: Tensor, gamma: Tensor | None, number: float
) -> Tensor:
    """u with gamma * continuation added in place, part by part; gamma is a number where it is no tensor.

    What a termination hides is not read of gamma either.
    """
    discount = None if gamma is None else unless(terminateds, gamma)
    for part, continuation in parts:
        if discount is None:
            part(u).add_(continuation, alpha=number)
        else:
            part(u).add_(part(discount) * continuation)
    return u


def unless(hidden: Tensor, x: Tensor) -> Tensor:
    """x, and 0 where it is hidden."""
    return torch.where(hidden, 0.0, x)


def cuts_before(flags: Tensor, dim: int, *, starts_at: bool) -> Tensor:
    """Where a forward recursion is cut, as a bool tensor: a step that reads nothing of the one before it.

    Flags at the step that ends an episode cut the step after it; flags at the first step of one (`starts_at`) cut that
    step itself. Nothing cuts the first column otherwise.
    """
    set_ = flags if flags.dtype == torch.bool else flags != 0
    return set_ if starts_at else of_previous(set_, None, dim)


def warn_of_values(
    rewards: Tensor,
    terminateds: Tensor,
    truncateds: Tensor | None,
    dim: int,
    *,
    continuation_given: bool,
    bootstrap_values: Tensor | None,
    inputs: dict[str, Any],
    mask: Tensor | None = None,
    boundary: str = "ends_at",
    next_start: Any = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """Warn of values that are legal but rarely meant. It looks into the tensors, so it may wait for the device.

    Tensors that hold no numbers to look at (on the meta device, or under a transform or a mode) are passed over.
    Arguments are those of the call, and have been checked.

    Warns:
        UserWarning: NaN in an input; a non-zero bootstrap value at an ordinary step; a last column that neither ended
            nor has a continuation.
    """
    if not holds_numbers(rewards):
        return
    if mask is not None:
        # What the mask leaves out is read nowhere.
        per_step = {name: x for name, x in inputs.items() if isinstance(x, Tensor) and x.shape == mask.shape}
        inputs = inputs | {name: x[mask != 0] for name, x in per_step.items()}
    for message in _nan_messages(inputs, "earlier"):
        warn_caller(message)
    if rewards.numel() == 0:
        return
    if boundary == "starts_at":
        behind, behind_truncated = flags_behind(boundary, next_start, truncateds)
        terminateds = of_next(terminateds, behind, dim)
        truncateds = None if truncateds is None else of_next(truncateds, behind_truncated, dim)
    ended = terminateds != 0 if truncateds is None else (terminateds != 0) | (truncateds != 0)
    if cu_seqlens is None:
        is_last = torch.zeros_like(ended)
        is_last.select(dim, -1).fill_(True)
    else:
        is_last = packing_of(cu_seqlens.long(), rewards, dim, reverse=True).at_open_ends(dim)
    if bootstrap_values is not None:
        stray = (bootstrap_values != 0) & ~is_last
        if truncateds is not None:
            stray = stray & (truncateds == 0)
        if bool(stray.any()):
            warn_caller(
                "bootstrap_values: non-zero at an ordinary step, where it is ignored; set it at truncated steps only"
            )
    if not continuation_given and not bool(ended[is_last].all()):
        warn_caller(
            "last_value: not given, and the last column has not ended everywhere, so it continues with 0; pass "
            "last_value, or bootstrap_values with V of the last observation in the last column"
        )


def warn_of_nan(inputs: dict[str, Any]) -> None:
    """Warn of NaN in the inputs of a forward scan, the first of which is the one that all others are shaped like.

    It looks into the tensors, so it may wait for the device. Tensors that hold no numbers to look at (on the meta
    device, or under a transform or a mode) are passed over.

    Warns:
        UserWarning: NaN in an input.
    """
    if holds_numbers(next(iter(inputs.values()))):
        for message in _nan_messages(inputs, "later"):
            warn_caller(message)


def _nan_messages(inputs: dict[str, Any], reached: str) -> Iterator[str]:
    """One message for every input that holds NaN."""
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and bool(value.isnan().any()):
            yield f"{name}: holds NaN; wherever no boundary hides it, every {reached} step of its episode becomes NaN"
