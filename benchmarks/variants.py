"""Entries made from others: the same algorithm with an option, measured at a few shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.registry import Algorithm, Arguments, Configuration
from benchmarks.rollouts import Rollout
from benchmarks.shapes import variant_cpu_targets, variant_targets

# Draws further arguments, which may take the place of those that are there.
Draw = Callable[[Rollout, Arguments], Arguments]


def variant(entry: Algorithm, suffix: str, draw: Draw | None = None, /, **changes: Any) -> Algorithm:
    """An entry with further arguments, and whatever else of it differs."""
    defaults = {"targets": variant_targets(), "cpu_targets": variant_cpu_targets(), "safeguards": (), "torchrl": None}
    changes = defaults | changes
    if draw is not None:
        changes["arguments"] = _with_more(entry.arguments, draw)
    return replace(entry, name=f"{entry.name}-{suffix}", **changes)


def _with_more(
    arguments: Callable[[Configuration, torch.device], Arguments], draw: Draw
) -> Callable[[Configuration, torch.device], Arguments]:
    def drawn(configuration: Configuration, device: torch.device) -> Arguments:
        given = arguments(configuration, device)
        # Other numbers than those that are there.
        return given | draw(Rollout(configuration, device, seed=1), given)

    return drawn


def option(**values: Any) -> Draw:
    """The same further arguments in every call."""
    return lambda rollout, given: dict(values)


def masked(rollout: Rollout, given: Arguments) -> Arguments:
    """A mask, and flags at the steps that it holds only."""
    mask = rollout.mask()
    flags = {name: given[name] * mask for name in ("terminateds", "truncateds") if given.get(name) is not None}
    return {"mask": mask, **{name: flag.to(given[name].dtype) for name, flag in flags.items()}}


starts_at = option(boundary="starts_at")
