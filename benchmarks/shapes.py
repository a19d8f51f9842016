"""The shapes that algorithms are measured at, and shorthands for what a figure has to reach."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.registry import Configuration, Target

FLOAT_FLAGS: dict[str, Any] = {"flags": torch.float32}
BOOL_FLAGS: dict[str, Any] = {"flags": torch.bool}
BFLOAT16: dict[str, Any] = {"dtype": torch.bfloat16, "flags": torch.bool}
FEW_ACTIONS = 4
TIME_MAJOR: dict[str, Any] = {"time_major": True}


def device(rows: int, steps: int, inputs: dict[str, Any], bound: float | None = None, *, quick: bool = False) -> Target:
    return Target(Configuration(rows, steps, **inputs), "device", bound=bound, quick=quick)


def calls(
    rows: int, steps: int, inputs: dict[str, Any], full: float | None, *, quick: bool = False
) -> tuple[Target, Target]:
    """A full and an amortised call, both without a bound where `full` is None."""
    configuration = Configuration(rows, steps, **inputs)
    return (
        Target(configuration, "full call", of_add=full, quick=quick),
        Target(configuration, "amortised", of_add=None if full is None else 1.5, quick=quick),
    )


def common_targets(short_rollout: float) -> tuple[Target, ...]:
    """The figures of an algorithm with a few inputs per step; the bound is for 4096 x 128 on the device."""
    return (
        *calls(4096, 128, FLOAT_FLAGS, 1.5),
        *calls(4096, 128, BOOL_FLAGS, 1.5, quick=True),
        device(4096, 128, FLOAT_FLAGS, short_rollout),
        device(4096, 128, BOOL_FLAGS, short_rollout, quick=True),
        device(16384, 512, FLOAT_FLAGS),
        device(16384, 512, BOOL_FLAGS, quick=True),
        device(16384, 512, BFLOAT16),
        device(32768, 8, BOOL_FLAGS),
        device(64, 32768, BOOL_FLAGS, quick=True),
        device(1, 1048576, BOOL_FLAGS),
        device(4096, 128, TIME_MAJOR, quick=True),
    )


def common_cpu_targets(actions: int = 0) -> tuple[Target, ...]:
    return (
        Target(Configuration(4096, 128, actions=actions), "wall", quick=True),
        Target(Configuration(64, 512, actions=actions), "wall", quick=True),
        Target(Configuration(1, 131072, actions=actions), "wall"),
        Target(Configuration(64, 32768, actions=actions), "wall"),
    )


def variant_targets() -> tuple[Target, ...]:
    """The figures of an algorithm with an option."""
    return (
        *calls(4096, 128, BOOL_FLAGS, None, quick=True),
        device(4096, 128, BOOL_FLAGS, quick=True),
        device(512, 8192, BOOL_FLAGS),
        device(16384, 512, BOOL_FLAGS),
        device(4096, 128, TIME_MAJOR),
    )


def variant_cpu_targets() -> tuple[Target, ...]:
    return (Target(Configuration(4096, 128), "wall", quick=True), Target(Configuration(64, 512), "wall"))


def common_safeguards() -> tuple[Target, ...]:
    """Looser than the table, for GPUs with other caches and hosts with other processors."""
    return (
        Target(Configuration(4096, 128), "full call", of_add=1.9),
        Target(Configuration(4096, 128), "amortised", of_add=2.2),
        Target(Configuration(16384, 512, **FLOAT_FLAGS), "device", of_copy=0.75),
        Target(Configuration(64, 32768), "device", of_copy=0.35),
        Target(Configuration(16384, 128, time_major=True), "device", of_copy=0.6),
    )
