"""Eligibility traces as they are defined: a loop from the first step to the last.

Sutton and Barto, "Reinforcement Learning: An Introduction", 2nd edition, 2018, equations 12.5 (accumulating), 12.12
(replacing), 12.11 (dutch, for features of which one at a time is 1) and 12.25 (with importance ratios):

    accumulating    z[t] = gradients[t] + gamma * lambda_ * z[t-1]
    replacing       z[t] = gradients[t] where that is not 0, else gamma * lambda_ * z[t-1]
    dutch           z[t] = gradients[t] + gamma * lambda_ * (1 - alpha * gradients[t]) * z[t-1]

With ratios, z[t] is ratios[t] times all of that. A trace ends with its episode: the step after an ended one starts from
its own gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor


def compute_eligibility_traces(
    gradients: Tensor,
    dones: Tensor,
    gamma: float,
    lambda_: float,
    seed_values: Tensor | None = None,
    *,
    kind: str = "accumulating",
    alpha: float | None = None,
    ratios: Tensor | None = None,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The traces, computed step by step in `dtype`. Arguments as for `rl_triton_traces.compute_eligibility_traces`."""
    x = gradients.movedim(time_dim, 0).to(dtype)
    done = dones.movedim(time_dim, 0) != 0
    rho = None if ratios is None else ratios.movedim(time_dim, 0).to(dtype)

    traces = list(x)
    for t in range(x.shape[0]):
        if t > 0:
            traces[t] = torch.where(done[t - 1], x[t], _step(x[t], gamma * lambda_, traces[t - 1], kind, alpha))
        elif seed_values is not None:
            traces[t] = _step(x[t], gamma * lambda_, seed_values.to(dtype), kind, alpha)
        if rho is not None:
            traces[t] = rho[t] * traces[t]
    return torch.stack(traces).movedim(0, time_dim) if traces else torch.empty_like(x).movedim(0, time_dim)


def _step(x: Tensor, decay: float, before: Tensor, kind: str, alpha: float | None) -> Tensor:
    """The trace after a step inside an episode, from the one before it."""
    if kind == "replacing":
        return torch.where(x != 0, x, decay * before)
    if kind == "dutch":
        assert alpha is not None
        return x + decay * (1 - alpha * x) * before
    assert kind == "accumulating"
    return x + decay * before
