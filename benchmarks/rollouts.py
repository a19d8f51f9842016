"""The inputs that algorithms are measured on: random rollouts whose rows have a boundary every fifty steps."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.registry import Arguments, Configuration

GAMMA, LAMBDA = 0.99, 0.95
EPISODE_ENDS = 0.02


class Rollout:
    """Draws the tensors of one call, in its layout and dtypes."""

    def __init__(self, configuration: Configuration, device: torch.device) -> None:
        self.configuration, self.device = configuration, device
        self.generator = torch.Generator(device).manual_seed(0)
        self.time_dim = 0 if configuration.time_major else 1

    def normal(self, *more_axes: int) -> Tensor:
        """One number per step, or several along further axes."""
        return self._normal(*self.configuration.shape, *more_axes)

    def per_row(self) -> Tensor:
        return self._normal(self.configuration.rows)

    def flags(self) -> Tensor:
        uniform = torch.rand(self.configuration.shape, generator=self.generator, device=self.device)
        return (uniform < EPISODE_ENDS).to(self.configuration.flags)

    def continuation(self) -> Arguments:
        """What follows the window: the values of truncated steps with their flags, or one value per row."""
        if self.configuration.truncated:
            return {"truncateds": self.flags(), "bootstrap_values": self.normal()}
        return {"last_value": self.per_row()}

    def actions(self) -> Tensor:
        """One action index per step."""
        high, shape = self.configuration.actions, self.configuration.shape
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def policy(self) -> Tensor:
        """Probabilities of all actions, per step."""
        return self.normal(self.configuration.actions).float().softmax(-1).to(self.configuration.dtype)

    def _normal(self, *size: int) -> Tensor:
        drawn = torch.randn(size, generator=self.generator, device=self.device)
        return drawn.to(self.configuration.dtype)
