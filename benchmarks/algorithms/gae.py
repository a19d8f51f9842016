"""The entry of compute_gae. Its bounds are microseconds on an H200, and milliseconds on two CPU cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import torchrl_calls
from benchmarks.packing import packed
from benchmarks.registry import Algorithm, Arguments, Configuration, Target, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import BFLOAT16, BOOL_FLAGS, FLOAT_FLAGS, TIME_MAJOR, calls, device
from benchmarks.variants import masked, option, starts_at, variant
from benchmarks.whole_arrays import Array, BackwardWindow, Scan


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "values": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "time_dim": rollout.time_dim,
    }
    return arguments | rollout.continuation()


def whole(arguments: Arguments, scan: Scan) -> Array | tuple[Array, ...]:
    """u[t] is the residual of the value function."""
    window, gamma, values = BackwardWindow(arguments), arguments["gamma"], arguments["values"]
    continuation = window.continuation(window.following(values), window.outside())
    u = arguments["rewards"] + gamma * continuation - values
    advantages = window.scan(u, gamma * arguments["lambda_"], scan)
    if not arguments.get("return_targets"):
        return window.at_valid(advantages)
    # A recursion of their own, where they have a lambda of their own.
    own = arguments.get("targets_lambda")
    residuals = advantages if own is None else window.scan(u, gamma * own, scan)
    return window.at_valid(advantages, values + residuals)


def standardized(advantages: Array) -> Array:
    """Mean 0 and standard deviation 1."""
    deviations = advantages - advantages.mean()
    return deviations / (((deviations**2).sum() / (math.prod(deviations.shape) - 1)) ** 0.5 + 1e-8)


def whole_normalized(arguments: Arguments, scan: Scan) -> Array:
    return standardized(whole(arguments, scan))


def normalized_reference() -> Callable[..., Tensor]:
    """The definition, which knows no `normalize`, and then what that does."""
    reference = GAE.reference()

    def compute(*, normalize: bool, **arguments: Any) -> Tensor:
        result: Tensor = standardized(reference(**arguments))
        return result

    return compute


TARGETS = (
    *calls(4096, 128, FLOAT_FLAGS, 1.3),
    *calls(4096, 128, BOOL_FLAGS, 1.3, quick=True),
    device(4096, 128, FLOAT_FLAGS, 3.3),
    device(4096, 128, BOOL_FLAGS, 2.9, quick=True),
    device(16384, 128, FLOAT_FLAGS, 7.4),
    device(16384, 128, BOOL_FLAGS, 7.4),
    device(16384, 512, FLOAT_FLAGS, 33.5),
    device(16384, 512, BOOL_FLAGS, 27.5, quick=True),
    device(16384, 512, BFLOAT16, 17.0, quick=True),
    device(65536, 512, FLOAT_FLAGS, 123.0),
    device(65536, 512, BOOL_FLAGS, 101.0),
    device(65536, 512, BFLOAT16, 57.0),
    device(4096, 2048, BOOL_FLAGS, 29.5),
    device(512, 4096, BOOL_FLAGS, 8.1),
    device(32768, 8, FLOAT_FLAGS, 2.8),
    device(32768, 8, BOOL_FLAGS, 2.8),
    device(32768, 32, FLOAT_FLAGS, 4.5),
    device(32768, 32, BOOL_FLAGS, 4.5),
    device(16384, 80, FLOAT_FLAGS, 5.2),
    device(16384, 80, BOOL_FLAGS, 5.2),
    device(64, 32768, BOOL_FLAGS, 11.5, quick=True),
    device(8, 131072, BOOL_FLAGS, 8.5),
    device(1, 1048576, BOOL_FLAGS, 9.0),
    device(4096, 128, TIME_MAJOR, 3.6, quick=True),
    device(16384, 128, TIME_MAJOR, 6.9),
    device(16384, 16, TIME_MAJOR, 2.5),
    device(4096, 24, TIME_MAJOR, 2.1),
    device(512, 2048, TIME_MAJOR, 9.0),
    device(128, 4096, TIME_MAJOR, 7.5),
    *calls(4096, 128, {**FLOAT_FLAGS, "truncated": True}, 1.5),
    *calls(4096, 128, {**BOOL_FLAGS, "truncated": True}, 1.5),
    device(4096, 128, {**FLOAT_FLAGS, "truncated": True}, 5.4),
    device(4096, 128, {**BOOL_FLAGS, "truncated": True}, 5.4),
)

CPU_TARGETS = (
    Target(Configuration(4096, 128), "wall", bound=1.5, quick=True),
    Target(Configuration(64, 512), "wall", bound=0.25, quick=True),
    Target(Configuration(1, 131072), "wall", bound=0.8),
    Target(Configuration(64, 32768), "wall", bound=17.0),
)

# Looser than the table, for GPUs with other caches and hosts with other processors.
SAFEGUARDS = (
    Target(Configuration(4096, 128), "full call", of_add=1.7),
    Target(Configuration(4096, 128), "amortised", of_add=2.0),
    Target(Configuration(16384, 512, **FLOAT_FLAGS), "device", of_copy=0.8),
    Target(Configuration(16384, 512, **BFLOAT16), "device", of_copy=0.65),
    Target(Configuration(64, 32768), "device", of_copy=0.4),
    Target(Configuration(16384, 128, time_major=True), "device", of_copy=0.7),
)

GAE = Algorithm(
    name="gae",
    function=imported("rl_triton_gae", "compute_gae"),
    reference=imported("rl_triton_gae.reference", "compute_gae"),
    arguments=make_arguments,
    whole=whole,
    torchrl=torchrl_calls.gae,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=TARGETS,
    cpu_targets=CPU_TARGETS,
    safeguards=SAFEGUARDS,
)

ENTRIES = (
    GAE,
    variant(GAE, "targets", option(return_targets=True)),
    variant(GAE, "targets_lambda", option(return_targets=True, targets_lambda=0.99)),
    variant(GAE, "mask", masked),
    variant(GAE, "starts_at", starts_at),
    packed(GAE),
    variant(GAE, "normalize", option(normalize=True), reference=normalized_reference, whole=whole_normalized),
)
