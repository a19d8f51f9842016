"""The networks of the learners: a Gaussian policy and a value function, each an MLP of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

OBSERVATIONS, ACTIONS = 60, 8


def mlp(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(OBSERVATIONS, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outputs))
    )


class ActorCritic(nn.Module):
    """A policy and a value function over observations as large as those of Isaac Gym's Ant."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.actor, self.critic = mlp(width, ACTIONS), mlp(width, 1)
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def values(self, observations: Tensor) -> Tensor:
        result: Tensor = self.critic(observations).squeeze(-1)
        return result

    def log_probabilities(self, observations: Tensor, actions: Tensor) -> Tensor:
        normalised = (actions - self.actor(observations)) * (-self.log_std).exp()
        constant = ACTIONS * 0.5 * math.log(2 * math.pi)
        result: Tensor = -0.5 * (normalised**2).sum(-1) - self.log_std.sum() - constant
        return result


def optimizer(network: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=3e-4, fused=device.type == "cuda")


def clipped_policy_loss(log_ratio: Tensor, advantages: Tensor, clip: float = 0.2) -> Tensor:
    """PPO's objective of every sample, to be minimised."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
