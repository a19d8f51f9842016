"""PPO on CartPole-v1, with its advantages from rl-triton.

- `rollouts` records vectorised environments in time-major windows, (steps, environments). It keeps the observation
  that each step led to *before* any reset, under both autoreset modes of gymnasium, and marks the steps that only
  reset an environment, so that they are never trained on.
- `estimate_advantages` hands a window to `compute_gae` as it is: an episode cut off by the time limit continues with
  the value of its final observation, one that ended with a fallen pole does not continue.
- `improve` is the clipped policy update of Schulman et al., "Proximal Policy Optimization Algorithms" (2017).

Solved means: the last 100 finished episodes returned at least the target on average. Exit code: 0 solved, 1 out of
steps before that, 2 wrong usage, 130 Ctrl-C.
"""

import signal

if __name__ == "__main__":  # until training starts there is no curve to save, and Ctrl-C just ends the program
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple, NoReturn

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from matplotlib.figure import Figure
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rl_triton_gae import compute_gae
from torch import Tensor, nn
from torch.distributions import Categorical

NUM_ENVS, ROLLOUT_STEPS, EPISODES_AVERAGED = 32, 128, 100
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
EPOCHS, MINIBATCH, LEARNING_RATE = 8, 512, 1e-3
VALUE_WEIGHT, ENTROPY_WEIGHT, MAX_GRADIENT_NORM = 0.5, 0.01, 0.5


class Rollout(NamedTuple):
    """A window of experience; every tensor starts with (steps, environments)."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminateds: Tensor
    truncateds: Tensor
    successors: Tensor  # the observation that a step led to, before any reset
    trainable: Tensor  # False where a step did nothing but reset its environment


@dataclass
class History:
    """What training has seen so far; complete whenever it is interrupted."""

    steps: int = 0
    mean_return: float = float("nan")
    episodes: list[tuple[int, float, float]] = field(default_factory=list)  # (steps so far, return, mean return)
    credit_seconds: list[float] = field(default_factory=list)

    def add_episode(self, episode_return: float) -> None:
        latest = [earlier for _, earlier, _ in self.episodes[1 - EPISODES_AVERAGED :]]
        self.mean_return = fmean([*latest, episode_return])
        self.episodes.append((self.steps, episode_return, self.mean_return))

    def is_solved(self, target: float) -> bool:
        return len(self.episodes) >= EPISODES_AVERAGED and self.mean_return >= target

    def average(self) -> str:
        return f"mean return {self.mean_return:.1f} over the last {EPISODES_AVERAGED} episodes"


class Agent(nn.Module):
    """A policy over discrete actions and a state value, each a small network."""

    def __init__(self, observation_size: int, num_actions: int, width: int = 64) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(observation_size, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), last)
            for last in (nn.Linear(width, num_actions), nn.Linear(width, 1))
        )

    def policy(self, observations: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observations), validate_args=False)

    def value(self, observations: Tensor) -> Tensor:
        return self.critic(observations).squeeze(-1)


def rollouts(
    envs: VectorEnv, act: Callable[[Tensor], Tensor], length: int, history: History, seed: int, device: torch.device
) -> Iterator[Rollout]:
    """Steps the environments for ever, one window of `length` steps at a time; episodes run on from one to the next."""
    same_step = envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, _ = envs.reset(seed=seed)
    resetting, returns = np.zeros(envs.num_envs, dtype=bool), np.zeros(envs.num_envs)
    while True:
        rows = []
        for _ in range(length):
            action = act(torch.from_numpy(observation).to(device)).cpu().numpy()
            following, reward, terminated, truncated, info = envs.step(action)
            ended = terminated | truncated
            successor = following.copy()
            if same_step and ended.any():
                # `following` already starts the next episode there; the infos hold what the step really led to.
                successor[ended] = np.stack(info["final_obs"][ended])
            rows.append((observation, action, reward.astype(np.float32), terminated, truncated, successor, ~resetting))
            # In the other mode, the next step ignores its action and leads from the final observation to a reset one.
            resetting = ended & (not same_step)
            history.steps += envs.num_envs
            returns += reward
            for episode_return in returns[ended].tolist():
                history.add_episode(episode_return)
            returns[ended] = 0.0
            observation = following
        yield Rollout(*(torch.from_numpy(np.stack(column)).to(device) for column in zip(*rows, strict=True)))


def synchronised_clock(device: torch.device) -> float:
    """Seconds, read once the work queued on a GPU is done: a launch returns long before its kernel ends."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@torch.no_grad()
def estimate_advantages(rollout: Rollout, value: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, float]:
    """Returns the advantages, the values that they were measured against, and the seconds spent in compute_gae."""
    values = value(rollout.observations)
    # The value of the successor is not in `values` where an episode was truncated, nor at the end of the window.
    needed = rollout.truncateds & ~rollout.terminateds
    needed[-1] = ~rollout.terminateds[-1]
    bootstrap_values = torch.zeros_like(values)
    bootstrap_values[needed] = value(rollout.successors[needed])
    rewards, ends = rollout.rewards, (rollout.terminateds, rollout.truncateds)
    start = synchronised_clock(values.device)
    advantages = compute_gae(rewards, values, *ends, GAMMA, LAMBDA, bootstrap_values, time_dim=0)
    return advantages, values, synchronised_clock(values.device) - start


def losses_of(
    agent: Agent, observations: Tensor, actions: Tensor, gains: Tensor, returns: Tensor, old: Tensor
) -> Tensor:
    """The clipped loss of every step, given its (normalised) advantage, its return and its old log-probability."""
    policy = agent.policy(observations)
    ratio = (policy.log_prob(actions) - old).exp()
    gain = torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains)
    value_error = (agent.value(observations) - returns).square()
    return VALUE_WEIGHT * value_error - gain - ENTROPY_WEIGHT * policy.entropy()


def improve(agent: Agent, optimizer: torch.optim.Adam, rollout: Rollout, advantages: Tensor, values: Tensor) -> None:
    """A few epochs of clipped policy gradient and value regression, over the trainable steps only."""
    keep = rollout.trainable
    observations, actions = rollout.observations[keep], rollout.actions[keep]
    advantages, returns = advantages[keep], (advantages + values)[keep]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    old_log_probs = agent.policy(observations).log_prob(actions).detach()
    steps = (observations, actions, advantages, returns, old_log_probs)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(actions), device=actions.device).split(MINIBATCH):
            loss = losses_of(agent, *(column[batch] for column in steps)).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def train(args: argparse.Namespace, history: History) -> Iterator[bool]:
    """Trains until solved or out of steps; after each rollout, updates `history` and yields whether it is solved."""
    torch.manual_seed(args.seed)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=NUM_ENVS)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n).to(args.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    act = torch.no_grad()(lambda observation: agent.policy(observation).sample())
    for rollout in rollouts(envs, act, ROLLOUT_STEPS, history, args.seed, args.device):
        solved = history.is_solved(args.target)
        yield solved
        if solved or history.steps >= args.steps:
            return
        advantages, values, seconds = estimate_advantages(rollout, agent.value)
        history.credit_seconds.append(seconds)
        improve(agent, optimizer, rollout, advantages, values)


def save_curve(history: History, target: float, path: Path) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")  # without pyplot, no display is looked for
    axes = figure.add_subplot(title="PPO on CartPole-v1", xlabel="environment steps", ylabel="return")
    steps, returns, mean_returns = np.reshape(history.episodes, (-1, 3)).T
    axes.plot(steps, returns, ".", markersize=3, alpha=0.3, label="one episode")
    axes.plot(steps, mean_returns, label=f"mean of the last {EPISODES_AVERAGED}")
    axes.axhline(target, color="grey", linestyle="--", label="target")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150, format="png")


class OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=500_000, help="budget, in whole rollouts; default: %(default)s")
    parser.add_argument("--target", type=float, default=475.0, help="mean return to reach; default: %(default)s")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ...; default: the GPU if there is one")
    parser.add_argument("--out", type=Path, default="ppo_cartpole.png", help="PNG to write; default: %(default)s")
    args = parser.parse_args(argv)
    for name, low, high in (("seed", 0, 2**32 - 1), ("steps", 1, 10**9), ("target", 1, 500)):
        if not low <= getattr(args, name) <= high:
            parser.error(f"argument --{name}: expected {low} to {high}, got {getattr(args, name)}")
    try:
        args.device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=args.device).item()
    except Exception:  # every backend has its own way of being absent
        parser.error(f"argument --device: cannot use {args.device} on this machine, try cpu")
    try:
        save_curve(History(), args.target, args.out)  # an empty one, to fail now rather than after training
    except OSError as error:
        parser.error(f"argument --out: cannot write {args.out}: {error.strerror}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    torch.set_num_threads(1)  # networks this small only lose time to more threads
    bar = Progress(TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
    live = sys.stdout.isatty() and not bar.console.is_dumb_terminal
    bar.disable = not live  # a log gets a line every two seconds instead
    task = bar.add_task("", total=args.steps)
    print(f"PPO on CartPole-v1, seed {args.seed}, {args.device}, at most {args.steps:,} steps", flush=True)
    history, next_line, start = History(), 0.0, time.perf_counter()
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with bar:
            for solved in train(args, history):
                outcome, exit_code = ("Solved", 0) if solved else ("Not solved", 1)
                seconds, mean = time.perf_counter() - start, history.mean_return
                line = f"{history.steps:>9,} steps  return {mean:5.1f}  {history.steps / seconds:7,.0f} steps/s"
                bar.update(task, completed=history.steps, description=line)
                if not live and seconds >= next_line:
                    print(line, flush=True)
                    next_line = seconds + 2.0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cost the curve
        outcome, exit_code = "Interrupted", 130
    seconds = time.perf_counter() - start
    save_curve(history, args.target, args.out)
    print(f"{outcome} after {history.steps:,} steps in {seconds:.1f} s: {history.average()}.")
    if calls := history.credit_seconds:
        detail = f"{median(calls) * 1e3:.2f} ms a call; the first, which compiles on a GPU, {calls[0] * 1e3:.2f} ms"
        print(f"Credit assignment took {sum(calls) / seconds:.2%} of the training time ({detail}).")
    print(f"Learning curve: {args.out.absolute()}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
