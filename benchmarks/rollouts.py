"""The inputs that algorithms are measured on: random rollouts whose rows have a boundary every fifty steps."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.registry import Arguments, Configuration

GAMMA, LAMBDA = 0.99, 0.95
EPISODE_ENDS = 0.02
VALID = 0.75


class Rollout:
    """Draws the tensors of one call, in its layout and dtypes."""

    def __init__(self, configuration: Configuration, device: torch.device, seed: int = 0) -> None:
        self.configuration, self.device = configuration, device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.time_dim = 0 if configuration.time_major else 1

    def normal(self, *more_axes: int) -> Tensor:
        """One number per step, or several along further axes."""
        return self._normal(*self.configuration.shape, *more_axes)

    def per_row(self) -> Tensor:
        return self._normal(self.configuration.rows)

    def flags(self) -> Tensor:
        return (self._uniform() < EPISODE_ENDS).to(self.configuration.flags)

    def mask(self) -> Tensor:
        """Most steps, in no order."""
        return (self._uniform() < VALID).to(self.configuration.flags)

    def continuation(self) -> Arguments:
        """What follows the window: the values of truncated steps with their flags, or one value per row."""
        if self.configuration.truncated:
            return {"truncateds": self.flags(), "bootstrap_values": self.normal()}
        return {"last_value": self.per_row()}

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """Of the actions taken, under two policies that differ as much as they do after a few updates."""
        log_pi = -self.normal().abs()
        return log_pi, log_pi + 0.2 * self.normal()

    def ratios(self) -> Tensor:
        """How much likelier one of two such policies finds the actions taken."""
        return (0.2 * self.normal()).exp()

    def actions(self) -> Tensor:
        """One action index per step."""
        high, shape = self.configuration.actions, self.configuration.shape
        return torch.randint(high, shape, generator=self.generator, device=self.device)

    def policy(self) -> Tensor:
        """Probabilities of all actions, per step."""
        return self.normal(self.configuration.actions).float().softmax(-1).to(self.configuration.dtype)

    def _uniform(self) -> Tensor:
        return torch.rand(self.configuration.shape, generator=self.generator, device=self.device)

    def _normal(self, *size: int) -> Tensor:
        drawn = torch.randn(size, generator=self.generator, device=self.device)
        return drawn.to(self.configuration.dtype)
