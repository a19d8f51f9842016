"""A learner of APPO's kind, which waits for small batches and answers each at once: here latency is what counts."""

from __future__ import annotations

import torch

from benchmarks.end_to_end.networks import ACTIONS, OBSERVATIONS, ActorCritic, clipped_policy_loss, optimizer
from benchmarks.end_to_end.scenario import Assign, Clock
from benchmarks.registry import Arguments, Configuration
from benchmarks.rollouts import GAMMA, Rollout


class APPO:
    """One pass over a batch with V-trace targets, since the policy that acted is some updates behind."""

    def __init__(self, device: torch.device, rows: int, steps: int, width: int) -> None:
        self.network = ActorCritic(width).to(device)
        self.optimizer = optimizer(self.network, device)
        rollout = Rollout(Configuration(rows, steps, time_major=True), device)
        # One observation more than steps: that after the window.
        drawn = rollout.normal(OBSERVATIONS)
        self.observations, self.actions = torch.cat([drawn, drawn[:1]]), rollout.normal(ACTIONS)
        with torch.no_grad():
            lag = 0.2 * rollout.normal()
            self.behavior = self.network.log_probabilities(self.observations[:-1], self.actions) + lag
        self._given: Arguments = {
            "log_pi_behavior": self.behavior,
            "rewards": rollout.normal(),
            "terminateds": rollout.flags(),
            "gamma": GAMMA,
            "time_dim": 0,
        }
        with torch.no_grad():
            self.arguments = self._with_networks(*self._forward())

    def _forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.network.log_probabilities(self.observations[:-1], self.actions), self.network.values(
            self.observations
        )

    def _with_networks(self, log_pi: torch.Tensor, values: torch.Tensor) -> Arguments:
        learned = {"log_pi_target": log_pi.detach(), "values": values[:-1].detach(), "last_value": values[-1].detach()}
        return self._given | learned

    def step(self, assign: Assign, clock: Clock) -> None:
        log_pi, values = self._forward()
        arguments = self._with_networks(log_pi, values)
        targets, advantages = clock.credit(lambda: assign(arguments))
        value_loss = (values[:-1] - targets).square().mean()
        loss = clipped_policy_loss(log_pi - self.behavior, advantages).mean() + 0.5 * value_loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
