"""The PPO demo: what it trains on at the end of an episode, and how it behaves as a command."""

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("rich")
pytest.importorskip("matplotlib")

import numpy as np  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

SCRIPT = Path(__file__).parents[1] / "docs" / "examples" / "ppo_cartpole.py"
BOTH_MODES = pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda m: m.name)


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_cartpole", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CountingEnv:
    """Two environments that observe 100 * episode + age: 0 is truncated at age 3, 1 is terminated at age 2."""

    num_envs = 2
    lifetimes = np.array([3, 2])

    def __init__(self, mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.age, self.ended = np.zeros(2, int), np.zeros(2, int), np.zeros(2, bool)
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return (100 * self.episode + self.age).astype(np.float32)[:, None]

    def begin_episodes(self, which: np.ndarray) -> None:
        self.episode[which] += 1
        self.age[which] = 0

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        same_step = self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        resetting = self.ended & (not same_step)
        self.age += 1
        self.begin_episodes(resetting)
        self.ended = (self.age == self.lifetimes) & ~resetting
        infos = {}
        if same_step and self.ended.any():
            final = np.full(2, None, dtype=object)
            for index in np.flatnonzero(self.ended):
                final[index] = self.observe()[index]
            infos["final_obs"] = final
            self.begin_episodes(self.ended)
        rewards = np.where(resetting, 0.0, 1.0)
        return self.observe(), rewards, self.ended & [False, True], self.ended & [True, False], infos


def windows_of(demo: ModuleType, envs: Any, length: int, history: Any) -> Any:
    device = torch.device("cpu")
    return demo.rollouts(envs, lambda observation: torch.zeros(len(observation)).long(), length, history, 0, device)


def value(observations: torch.Tensor) -> torch.Tensor:
    """V(s) = s: the value tells which observation it was taken of."""
    return observations[..., 0]


@BOTH_MODES
def test_truncation_bootstraps_from_the_final_observation(
    demo: ModuleType, mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    compute_gae = demo.compute_gae

    def recording(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(inspect.signature(compute_gae).bind(*args, **kwargs).arguments["bootstrap_values"])
        return compute_gae(*args, **kwargs)

    monkeypatch.setattr(demo, "compute_gae", recording)
    # A window of three steps ends with a truncation, so that its reset is the first step of the next window.
    windows = windows_of(demo, CountingEnv(mode), 3, demo.History())
    for _ in range(4):
        rollout = next(windows)
        demo.estimate_advantages(rollout, value)
        truncated = rollout.truncateds
        expected = rollout.observations[..., 0] + 1
        assert torch.equal(seen[-1][truncated], expected[truncated])
        assert (expected[truncated] % 100 == 3).all()
        running = ~rollout.terminateds[-1] & rollout.trainable[-1]
        assert torch.equal(seen[-1][-1][running], expected[-1][running])
        assert (seen[-1][rollout.terminateds] == 0).all()


@BOTH_MODES
def test_advantages_are_those_of_each_episode_alone(demo: ModuleType, mode: AutoresetMode) -> None:
    rollout = next(windows_of(demo, CountingEnv(mode), 13, demo.History()))
    advantages, _, _ = demo.estimate_advantages(rollout, value)
    assert rollout.truncateds.sum() >= 3
    assert rollout.terminateds.sum() >= 4
    checked = 0
    for env in range(2):
        later, episode = 0.0, -1
        for t in reversed(range(13)):
            if not rollout.trainable[t, env]:
                continue
            state = rollout.observations[t, env, 0].item()
            if state // 100 != episode:
                later, episode = 0.0, state // 100
            continuation = 0.0 if rollout.terminateds[t, env] else state + 1
            later = 1.0 + demo.GAMMA * continuation - state + demo.GAMMA * demo.LAMBDA * later
            assert advantages[t, env].item() == pytest.approx(later, abs=1e-3)  # values are in the hundreds
            checked += 1
    assert checked == (26 if mode is AutoresetMode.SAME_STEP else 19)


@BOTH_MODES
def test_nothing_but_real_transitions_is_trainable(demo: ModuleType, mode: AutoresetMode) -> None:
    history = demo.History()
    windows = windows_of(demo, CountingEnv(mode), 3, history)
    for _ in range(8):
        rollout = next(windows)
        step = rollout.successors - rollout.observations
        assert torch.equal(step[..., 0] == 1, rollout.trainable)
        assert torch.equal(rollout.rewards == 1, rollout.trainable)
    assert {total for _, total, _ in history.episodes} == {2.0, 3.0}


@pytest.mark.parametrize(
    "options",
    [{}, {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}],
    ids=["next-step", "same-step"],
)
def test_cartpole_transitions_obey_its_physics(demo: ModuleType, options: dict[str, Any]) -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, max_episode_steps=7, **options)
    history = demo.History()
    windows = windows_of(demo, envs, 10, history)
    for _ in range(3):
        rollout = next(windows)
        assert rollout.truncateds.any()
        position, velocity = rollout.observations[..., 0], rollout.observations[..., 1]
        obeys = torch.isclose(rollout.successors[..., 0], position + 0.02 * velocity, atol=1e-6)
        assert obeys[rollout.trainable].all()
        assert not obeys[~rollout.trainable].any()
    assert {total for _, total, _ in history.episodes} == {7.0}
    envs.close()


def test_updates_ignore_steps_that_are_not_trainable(demo: ModuleType) -> None:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=2, max_episode_steps=5)
    rollout = next(windows_of(demo, envs, 12, demo.History()))
    advantages, values, _ = demo.estimate_advantages(rollout, value)
    assert not rollout.trainable.all()
    poisoned = torch.where(rollout.trainable, advantages, torch.nan)
    agent = demo.Agent(4, 2)
    demo.improve(agent, torch.optim.Adam(agent.parameters()), rollout, poisoned, values)
    assert all(parameter.isfinite().all() for parameter in agent.parameters())


def test_help(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        demo.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--seed", "--steps", "--target", "--device", "--out"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--bogus"], "--bogus"),
        (["--steps", "-3"], "--steps"),
        (["--steps", "many"], "--steps"),
        (["--seed", "-1"], "--seed"),
        (["--target", "nan"], "--target"),
        (["--target", "501"], "--target"),
        (["--device", "gpu"], "--device"),
        (["--device", "cuda:99"], "--device"),
        (["--device", "meta"], "--device"),
        (["--device", "cpu", "--out", "no/such/folder/curve.png"], "--out"),
        (["--device", "cpu", "--out", "."], "--out"),
    ],
)
def test_wrong_usage_is_one_line(
    demo: ModuleType, arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        demo.main(arguments)
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert named in output.err


def start(*arguments: str, out: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--out", str(out), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def assert_shows_episodes(demo: ModuleType, curve: Path, target: float) -> None:
    empty = curve.with_name("empty.png")
    demo.save_curve(demo.History(), target, empty)
    assert curve.read_bytes().startswith(b"\x89PNG\r\n")
    assert curve.read_bytes() != empty.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "target", "exit_code", "outcome"),
    [(["--steps", "5000"], 475.0, 1, "Not solved"), (["--target", "1"], 1.0, 0, "Solved")],
    ids=["out of steps", "solved"],
)
def test_short_run(
    demo: ModuleType, tmp_path: Path, arguments: list[str], target: float, exit_code: int, outcome: str
) -> None:
    curve = tmp_path / "curve.png"
    with start(*arguments, out=curve) as process:
        output, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == exit_code
    assert f"{outcome} after " in output
    assert "steps/s" in output
    assert f"Learning curve: {curve}" in output
    assert ("Credit assignment took" in output) == (outcome == "Not solved")
    assert "━" not in output, "a log gets lines, not a bar"
    assert_shows_episodes(demo, curve, target)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT to send to one process")
def test_interrupt_leaves_the_curve_so_far(demo: ModuleType, tmp_path: Path) -> None:
    curve = tmp_path / "curve.png"
    with start("--target", "500", "--steps", "1000000000", out=curve) as process:
        assert process.stdout is not None
        while "steps/s" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == ""
    assert "Interrupted after " in output
    assert_shows_episodes(demo, curve, 500.0)
