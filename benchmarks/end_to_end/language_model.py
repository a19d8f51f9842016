"""The advantage step of reinforcement learning on a language model: from log-probabilities to the gradient of the loss.

The model's own forward and backward pass are not in it. They take seconds at this size, so that the share of a whole
training step is far smaller than what is measured here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.end_to_end.networks import clipped_policy_loss
from benchmarks.end_to_end.scenario import Assign, Clock
from benchmarks.registry import Arguments, Configuration
from benchmarks.rollouts import LAMBDA, Rollout

SAMPLES_PER_PROMPT = 8
KL_WEIGHT = 0.05


class Tokens:
    """Responses of different lengths, in which some tokens are a tool's and not the model's own."""

    def __init__(self, device: torch.device, rows: int, steps: int) -> None:
        rollout = Rollout(Configuration(rows, steps), device)
        lengths = torch.randint(1 + steps // 2, 1 + steps, (rows, 1), generator=rollout.generator, device=device)
        place = torch.arange(steps, device=device)
        # The last token of a response is always its own, since its flag stands there.
        self.is_last = place == lengths - 1
        self.mask = ((place < lengths) & rollout.mask()) | self.is_last
        self.old = -rollout.normal().abs()
        self.log_pi = (self.old + 0.05 * rollout.normal()).requires_grad_()
        self.reference = self.old + 0.1 * rollout.normal()
        self.scores = rollout.per_row()
        self.old_values = rollout.normal()
        self.values = (self.old_values + 0.1 * rollout.normal()).requires_grad_()

    def policy_loss(self, advantages: Tensor) -> Tensor:
        """The mean over the model's own tokens."""
        losses = clipped_policy_loss(self.log_pi - self.old, advantages)
        return torch.where(self.mask, losses, 0.0).sum() / self.mask.sum()


class TokenPPO:
    """Rewards with a penalty per token, advantages by GAE over the mask, and the losses of policy and values."""

    def __init__(self, device: torch.device, rows: int, steps: int) -> None:
        self.tokens = Tokens(device, rows, steps)
        self.arguments: Arguments = {
            "rewards": self._rewards(),
            "values": self.tokens.old_values,
            "terminateds": self.tokens.is_last,
            "gamma": 1.0,
            "lambda_": LAMBDA,
            "last_value": torch.zeros(rows, device=device),
            "mask": self.tokens.mask,
            "time_dim": 1,
        }

    def _rewards(self) -> Tensor:
        penalty = -KL_WEIGHT * (self.tokens.old - self.tokens.reference)
        return torch.where(self.tokens.is_last, penalty + self.tokens.scores.unsqueeze(1), penalty)

    def step(self, assign: Assign, clock: Clock) -> None:
        tokens, mask = self.tokens, self.tokens.mask
        arguments = self.arguments | {"rewards": self._rewards()}
        (advantages,) = clock.credit(lambda: assign(arguments))
        targets = advantages + tokens.old_values
        count = mask.sum()
        mean = advantages.sum() / count
        deviation = (torch.where(mask, advantages - mean, 0.0).square().sum() / count).sqrt()
        value_loss = torch.where(mask, (tokens.values - targets).square(), 0.0).sum() / count
        loss = tokens.policy_loss((advantages - mean) / (deviation + 1e-8)) + 0.5 * value_loss
        torch.autograd.grad(loss, (tokens.log_pi, tokens.values))


class TokenGRPO:
    """No critic: a response is worth what it is among the others to its prompt, and so is each of its tokens."""

    def __init__(self, device: torch.device, rows: int, steps: int) -> None:
        self.tokens = Tokens(device, rows, steps)
        self.arguments: Arguments = {"rewards": self.tokens.scores.view(-1, SAMPLES_PER_PROMPT)}

    def step(self, assign: Assign, clock: Clock) -> None:
        (of_responses,) = clock.credit(lambda: assign(self.arguments))
        loss = self.tokens.policy_loss(of_responses.view(-1, 1).expand_as(self.tokens.old))
        torch.autograd.grad(loss, self.tokens.log_pi)
