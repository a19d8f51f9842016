"""The entries of compute_group_advantages. A row is a prompt, a step one of its responses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.registry import Algorithm, Arguments, Configuration, Target, bytes_once, imported
from benchmarks.rollouts import Rollout
from benchmarks.shapes import BOOL_FLAGS, calls, device
from benchmarks.variants import option, variant
from benchmarks.whole_arrays import Array, Scan, namespace

MOST_RESPONSES = 2**16


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    return {"rewards": Rollout(configuration, device).normal()}


def whole(arguments: Arguments, scan: Scan) -> Array:
    """Nothing follows anything in time, so there is nothing to scan."""
    rewards = arguments["rewards"]
    samples = rewards.shape[1]
    if samples == 1:
        return 0.0 * rewards
    deviations = rewards - rewards.mean(1)[:, None]
    if arguments.get("baseline") == "leave_one_out":
        return deviations * (samples / (samples - 1))
    std = ((deviations**2).sum(1) / (samples - 1))[:, None] ** 0.5
    return namespace(rewards).where(std == 0, 0.0, deviations / (std + 1e-6))


def reference_on_cpu() -> Callable[..., Tensor]:
    """The definition, which looks into its numbers one by one."""
    compute = imported("rl_triton_returns.groups.reference", "compute_group_advantages")()

    def advantages(*, rewards: Tensor, dtype: torch.dtype = torch.float64, **options: object) -> Tensor:
        result: Tensor = compute(rewards.cpu(), dtype=dtype, **options)
        return result.to(rewards.device)

    return advantages


def has_few_responses(configuration: Configuration) -> bool:
    return configuration.rows * configuration.steps <= MOST_RESPONSES


TARGETS = (
    *calls(512, 8, BOOL_FLAGS, None, quick=True),
    *(
        device(prompts, samples, BOOL_FLAGS, quick=quick)
        for prompts, samples, quick in ((64, 8, False), (512, 8, True), (1024, 64, False), (16384, 16, True))
    ),
)
CPU_TARGETS = (Target(Configuration(512, 8), "wall", quick=True), Target(Configuration(1024, 64), "wall"))

GROUPS = Algorithm(
    name="returns-groups",
    function=imported("rl_triton_returns", "compute_group_advantages"),
    reference=reference_on_cpu,
    arguments=make_arguments,
    whole=whole,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=TARGETS,
    cpu_targets=CPU_TARGETS,
    safeguards=(),
    is_sequential=has_few_responses,
)
RLOO = option(baseline="leave_one_out", scale=None)
ENTRIES = (GROUPS, variant(GROUPS, "leave_one_out", RLOO, targets=TARGETS, cpu_targets=CPU_TARGETS))
