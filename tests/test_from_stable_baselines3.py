"""The example that replaces the loop of Stable-Baselines3's buffer; beside the real one in `nox -s frameworks`."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rl_triton_core.testing.calls import assert_obeys_rule_as_given
from rl_triton_gae import reference
from torch import Tensor

np = pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(EXAMPLES)
    EXAMPLE = runpy.run_path(str(EXAMPLES / "from_stable_baselines3.py"))
GAMMA, LAMBDA = EXAMPLE["GAMMA"], EXAMPLE["LAMBDA"]
SHAPE = (40, 5)


def drawn() -> dict[str, Tensor]:
    """What the steps of a rollout returned, and the values of the observations around them."""
    generator = torch.Generator().manual_seed(0)
    given = {name: torch.randn(SHAPE, generator=generator) for name in ("rewards", "values", "final_values")}
    given["last_values"] = torch.randn(SHAPE[1], generator=generator)
    given["dones"] = torch.rand(SHAPE, generator=generator) < 0.2
    given["truncateds"] = given["dones"] & (torch.rand(SHAPE, generator=generator) < 0.5)
    # The last step: goes on, was cut off, terminated.
    given["dones"][-1] = torch.tensor([0, 1, 1, 0, 0])
    given["truncateds"][-1] = torch.tensor([0, 1, 0, 0, 0])
    return given


def stored(given: dict[str, Tensor]) -> dict[str, Any]:
    """The buffer's arrays for such a rollout, and numbers where results go."""
    rewards = given["rewards"] + GAMMA * given["final_values"] * given["truncateds"]
    starts = torch.cat((torch.ones(1, SHAPE[1]), given["dones"][:-1].float()))
    arrays = {"rewards": rewards.numpy(), "values": given["values"].numpy(), "episode_starts": starts.numpy()}
    return {**arrays, **{name: np.full(SHAPE, np.nan, np.float32) for name in ("advantages", "returns")}}


def assert_is_the_definition(advantages: Tensor, returns: Tensor, given: dict[str, Tensor]) -> None:
    """Against the oracle on a rollout in which time limits are told apart."""
    final_values = given["final_values"].clone()
    final_values[-1] = torch.where(given["truncateds"][-1], final_values[-1], given["last_values"])
    arguments = {
        "rewards": given["rewards"],
        "values": given["values"],
        "terminateds": given["dones"] & ~given["truncateds"],
        "truncateds": given["truncateds"],
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "bootstrap_values": final_values,
        "return_targets": True,
        "time_dim": 0,
    }
    assert_obeys_rule_as_given(lambda **_: (advantages, returns), reference.compute_gae, arguments)


def test_fills_the_buffer() -> None:
    given = drawn()
    buffer = SimpleNamespace(**stored(given), gamma=GAMMA, gae_lambda=LAMBDA)
    arrays = dict(vars(buffer))
    last_values = given["last_values"].unsqueeze(-1).requires_grad_()
    EXAMPLE["compute_returns_and_advantage"](buffer, last_values, given["dones"][-1].numpy())
    assert all(vars(buffer)[name] is array for name, array in arrays.items())
    assert_is_the_definition(torch.from_numpy(buffer.advantages), torch.from_numpy(buffer.returns), given)


def test_time_limits_told_apart() -> None:
    given = drawn()
    assert_is_the_definition(*EXAMPLE["with_time_limits"](**given), given)


def test_prints_that_they_agree(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE["main"]()
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines, ("the buffer's loop", "time limits told apart"), strict=True):
        difference = line.removeprefix(f"The call and {name} differ by ").split()[0]
        assert 0 <= float(difference) < 1e-5


@pytest.fixture(params=["theirs", "ours"])
def buffer_class(request: pytest.FixtureRequest) -> Any:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    theirs = buffers.RolloutBuffer.compute_returns_and_advantage
    method = {"theirs": theirs, "ours": EXAMPLE["compute_returns_and_advantage"]}[request.param]
    return type(request.param, (buffers.RolloutBuffer,), {"compute_returns_and_advantage": method})


def test_a_real_buffer(buffer_class: Any) -> None:
    spaces = pytest.importorskip("gymnasium.spaces")
    space, given = spaces.Box(-1, 1, (1,), np.float32), drawn()
    buffer = buffer_class(SHAPE[0], space, space, "cpu", LAMBDA, GAMMA, SHAPE[1])
    vars(buffer).update(stored(given))
    ends = (given["last_values"].unsqueeze(-1), given["dones"][-1].numpy())
    buffer.compute_returns_and_advantage(*ends)
    assert_is_the_definition(torch.from_numpy(buffer.advantages), torch.from_numpy(buffer.returns), given)

    # Only the loop lets what lies behind the end of an episode through.
    t, env = given["dones"][:-1].nonzero()[-1].tolist()
    buffer.values[t + 1, env] = np.nan
    buffer.compute_returns_and_advantage(*ends)
    assert np.isnan(buffer.advantages[: t + 1, env]).all() == (buffer_class.__name__ == "theirs")
    assert np.isfinite(buffer.advantages[: t + 1, env]).all() == (buffer_class.__name__ == "ours")


def test_a_rollout_with_time_limits(buffer_class: Any) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Recorder(BaseCallback):
        """What the environments returned, before the algorithm adds to it, and what is then in the buffer."""

        def _init_callback(self) -> None:
            self.rewards, self.dones, self.truncateds, self.final_values = [], [], [], []

        def value(self, observations: Any) -> Tensor:
            with torch.no_grad():
                return self.model.policy.predict_values(torch.as_tensor(observations)).flatten()

        def _on_step(self) -> bool:
            infos = self.locals["infos"]
            self.rewards.append(torch.tensor(self.locals["rewards"]))
            self.dones.append(torch.tensor(self.locals["dones"]))
            self.truncateds.append(torch.tensor([info.get("TimeLimit.truncated", False) for info in infos]))
            nowhere = self.locals["new_obs"][0] * np.nan
            self.final_values.append(
                self.value(np.stack([info.get("terminal_observation", nowhere) for info in infos]))
            )
            return True

        def _on_rollout_end(self) -> None:
            names = ("values", "advantages", "returns")
            self.buffer = {name: torch.tensor(getattr(self.model.rollout_buffer, name)) for name in names}
            self.last_values = self.value(self.locals["new_obs"])

    envs = make_vec_env("CartPole-v1", n_envs=SHAPE[1], seed=0, env_kwargs={"max_episode_steps": 15})
    sizes = {"n_steps": SHAPE[0], "batch_size": SHAPE[0] * SHAPE[1], "n_epochs": 1}
    numbers = {"gamma": GAMMA, "gae_lambda": LAMBDA, "seed": 0, "device": "cpu"}
    recorder = Recorder()
    PPO("MlpPolicy", envs, rollout_buffer_class=buffer_class, **sizes, **numbers).learn(SHAPE[0] * SHAPE[1], recorder)

    names = ("rewards", "dones", "truncateds", "final_values")
    given = {name: torch.stack(getattr(recorder, name)) for name in names}
    given |= {"values": recorder.buffer["values"], "last_values": recorder.last_values}
    assert given["truncateds"].any()
    assert (given["dones"] & ~given["truncateds"]).any()
    assert_is_the_definition(recorder.buffer["advantages"], recorder.buffer["returns"], given)
    assert_is_the_definition(*EXAMPLE["with_time_limits"](**given), given)
