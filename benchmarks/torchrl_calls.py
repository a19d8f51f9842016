"""The same calls of TorchRL.

It has the time axis second and a feature axis last, and wants V(s_{t+1}) at every step, which is made ready before
a call is timed. Where it has a loop and a vectorised form, the faster counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Arguments
from benchmarks.whole_arrays import BackwardWindow

Call = Callable[[], Any]


def gae(arguments: Arguments) -> Call:
    from torchrl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

    window, values = BackwardWindow(arguments), arguments["values"]
    into, back = _layout(arguments["time_dim"])
    ready = {
        "gamma": arguments["gamma"],
        "lmbda": arguments["lambda_"],
        "state_value": into(values),
        "next_state_value": into(window.continuation(window.following(values), window.outside())),
        "reward": into(arguments["rewards"]),
        "done": into(window.terminated | window.interrupted),
        "terminated": into(window.terminated),
    }
    forms = (generalized_advantage_estimate, vec_generalized_advantage_estimate)
    return _faster([partial(_first_of, form, ready, back) for form in forms])


def lambda_returns(arguments: Arguments) -> Call:
    from torchrl.objectives.value.functional import td_lambda_return_estimate, vec_td_lambda_return_estimate

    window, next_values = BackwardWindow(arguments), arguments["next_values"]
    into, back = _layout(arguments["time_dim"])
    outside = window.outside() if "bootstrap_values" in arguments else next_values
    ready = {
        "gamma": arguments["gamma"],
        "lmbda": arguments["lambda_"],
        "next_state_value": into(window.continuation(next_values, outside)),
        "reward": into(arguments["rewards"]),
        "done": into(window.terminated | window.interrupted),
        "terminated": into(window.terminated),
    }
    forms = (td_lambda_return_estimate, vec_td_lambda_return_estimate)
    return _faster([partial(_all_of, form, ready, back) for form in forms])


def vtrace(arguments: Arguments) -> Call:
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    window, values = BackwardWindow(arguments), arguments["values"]
    into, back = _layout(arguments["time_dim"])
    ready = {
        "gamma": arguments["gamma"],
        "log_pi": into(arguments["log_pi_target"]),
        "log_mu": into(arguments["log_pi_behavior"]),
        "state_value": into(values),
        "next_state_value": into(window.continuation(window.following(values), window.outside())),
        "reward": into(arguments["rewards"]),
        "done": into(window.terminated | window.interrupted),
        "terminated": into(window.terminated),
    }

    def call() -> tuple[Tensor, Tensor]:
        advantages, targets = vtrace_advantage_estimate(**ready)
        return back(targets), back(advantages)

    return call


def _layout(dim: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Into the layout of TorchRL, and back."""
    return (
        lambda x: x.movedim(dim, 1).contiguous().unsqueeze(-1),
        lambda x: x.squeeze(-1).movedim(1, dim),
    )


def _first_of(form: Callable[..., Any], ready: Arguments, back: Callable[[Tensor], Tensor]) -> Tensor:
    return back(form(**ready)[0])


def _all_of(form: Callable[..., Any], ready: Arguments, back: Callable[[Tensor], Tensor]) -> Tensor:
    return back(form(**ready))


def _faster(calls: Sequence[Call]) -> Call:
    return min(calls, key=_seconds)


def _seconds(call: Call) -> float:
    """Of the second call: the first one may have something to set up."""
    for _ in range(2):
        begin = time.perf_counter()
        outputs = call()
        if outputs.is_cuda:
            torch.cuda.synchronize(outputs.device)
    return time.perf_counter() - begin
