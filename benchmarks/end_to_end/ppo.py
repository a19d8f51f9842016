"""An update of PPO at the size of Isaac Gym's Ant: 4096 environments, 128 steps, 4 epochs of 4 minibatches."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from benchmarks.end_to_end.networks import ACTIONS, OBSERVATIONS, ActorCritic, clipped_policy_loss, optimizer
from benchmarks.end_to_end.scenario import Assign, Clock
from benchmarks.registry import Arguments, Configuration
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout

EPOCHS, MINIBATCHES = 4, 4


class PPO:
    """The learner's part of PPO, over a rollout that is drawn once; no environment is stepped."""

    def __init__(self, device: torch.device, rows: int, steps: int, width: int, recompute: bool) -> None:
        self.network = ActorCritic(width).to(device)
        self.optimizer = optimizer(self.network, device)
        self.recompute = recompute
        # (T, N) buffers, as vector environments fill them.
        rollout = Rollout(Configuration(rows, steps, time_major=True, truncated=True), device)
        self.observations, self.actions = rollout.normal(OBSERVATIONS), rollout.normal(ACTIONS)
        with torch.no_grad():
            self.log_probabilities = self.network.log_probabilities(self.observations, self.actions)
            values = self.network.values(self.observations)
        self.arguments: Arguments = {
            "rewards": rollout.normal(),
            "values": values,
            "terminateds": rollout.flags(),
            "gamma": GAMMA,
            "lambda_": LAMBDA,
            "time_dim": 0,
            **rollout.continuation(),
        }

    def step(self, assign: Assign, clock: Clock) -> None:
        arguments = self.arguments
        for epoch in range(EPOCHS):
            if epoch == 0 or self.recompute:
                if epoch:
                    with torch.no_grad():
                        arguments = arguments | {"values": self.network.values(self.observations)}
                (advantages,) = clock.credit(partial(assign, arguments))
                targets = advantages + arguments["values"]
            batch = (self.observations, self.actions, self.log_probabilities, advantages, targets)
            flat = [x.flatten(0, 1) for x in batch]
            for chosen in torch.randperm(len(flat[0]), device=flat[0].device).chunk(MINIBATCHES):
                self._learn(*(x[chosen] for x in flat))

    def _learn(self, *minibatch: torch.Tensor) -> None:
        observations, actions, old, advantages, targets = minibatch
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = self.network.log_probabilities(observations, actions) - old
        value_loss = (self.network.values(observations) - targets).square().mean()
        loss = clipped_policy_loss(log_ratio, advantages).mean() + 0.5 * value_loss
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
