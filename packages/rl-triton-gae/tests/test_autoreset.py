"""Windows of Gymnasium's own vector environments in every mode, against the episodes computed apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from rl_triton_core.autoreset import from_gymnasium
from rl_triton_gae import compute_gae
from torch import Tensor

gymnasium = pytest.importorskip("gymnasium")
np = pytest.importorskip("numpy")
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

GAMMA, LAMBDA = 0.9, 0.8
# How long each environment's episodes are, one after the other; an odd number ends in a termination.
LENGTHS = ((3, 4, 2, 1, 6, 2, 5, 1, 1, 4, 2), (2, 2, 1, 2, 4, 1, 1, 8, 2, 3, 6), (50,), (1, 1, 1, 2, 2, 2, 1) * 8)
STEPS, WINDOWS = 5, 5


class Step(NamedTuple):
    """A step as its environment saw it."""

    observation: float
    reward: float
    following: float
    terminated: bool
    truncated: bool


class Episodes(gymnasium.Env):  # type: ignore[misc, name-defined]
    """Episodes of given lengths, every observation of which is another number; it keeps what really happened."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.observation = 1000.0 * number
        self.lengths = list(LENGTHS[number])
        self.steps: list[Step] = []

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.left = self.length = self.lengths.pop(0)
        self.observation += 1.0
        return np.array([self.observation]), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        over, reward = self.left == 0, float(np.cos(3.0 * self.observation)) + action
        terminated, truncated = over and self.length % 2 == 1, over and self.length % 2 == 0
        self.steps.append(Step(self.observation, reward, self.observation + 1.0, terminated, truncated))
        self.observation += 1.0
        return np.array([self.observation]), reward, terminated, truncated, {}


def value(observations: Any) -> Tensor:
    return torch.as_tensor(np.asarray(observations, dtype=np.float64)).sin()


def apart(steps: list[Step]) -> list[float]:
    """The advantages of steps that follow each other, by the definition."""
    advantages: list[float] = []
    following = 0.0
    for step in reversed(steps):
        ended = step.terminated or step.truncated
        continuation = 0.0 if step.terminated else value([step.following]).item()
        delta = step.reward + GAMMA * continuation - value([step.observation]).item()
        following = delta if ended else delta + GAMMA * LAMBDA * following
        advantages.insert(0, following)
    return advantages


@pytest.mark.parametrize("layout", ["time-major", "environment-major"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_windows_are_episodes_computed_apart(mode: AutoresetMode, layout: str) -> None:
    environments = [Episodes(number) for number in range(len(LENGTHS))]
    envs = SyncVectorEnv([lambda env=env: env for env in environments], autoreset_mode=mode)  # type: ignore[misc]
    generator = np.random.default_rng(0)
    observations, _ = envs.reset()
    seen = [0] * len(environments)
    previous_done: Tensor | None = None
    for _ in range(WINDOWS):
        rows: dict[str, list[Any]] = {
            name: [] for name in ("values", "rewards", "terminations", "truncations", "final")
        }
        for _ in range(STEPS):
            rows["values"].append(value(observations)[:, 0])
            actions = generator.integers(2, size=len(environments))
            observations, rewards, terminations, truncations, infos = envs.step(actions)
            done = terminations | truncations
            final = np.full(len(environments), np.nan)
            if mode == AutoresetMode.SAME_STEP and done.any():
                final[done] = np.concatenate(infos["final_obs"][done])
            elif mode == AutoresetMode.DISABLED and done.any():
                final[done] = observations[done, 0]
                observations, _ = envs.reset(options={"reset_mask": done})
            for name, x in (("rewards", rewards), ("terminations", terminations), ("truncations", truncations)):
                rows[name].append(torch.as_tensor(x.copy()))
            rows["final"].append(value(final))
        dim = 0 if layout == "time-major" else 1
        given = {name: torch.stack(x, dim) for name, x in rows.items()}
        more = {"previous_done": previous_done} if mode == AutoresetMode.NEXT_STEP else {"final_values": given["final"]}
        rollout = from_gymnasium(
            *(given["terminations"], given["truncations"], given["values"]),
            mode=mode,
            last_value=value(observations)[:, 0],
            time_dim=dim,
            **more,
        )
        previous_done = torch.as_tensor(done)
        advantages = compute_gae(
            *(given["rewards"], given["values"], rollout.terminateds, rollout.truncateds, GAMMA, LAMBDA),
            bootstrap_values=rollout.bootstrap_values,
            time_dim=dim,
        )
        for row, env in enumerate(environments):
            ours = advantages.select(1 - dim, row)[rollout.valid.select(1 - dim, row)]
            truth = apart(env.steps[seen[row] :])
            seen[row] = len(env.steps)
            torch.testing.assert_close(ours, torch.tensor(truth, dtype=torch.float64))
    assert all(len(env.steps) > 12 for env in environments)
