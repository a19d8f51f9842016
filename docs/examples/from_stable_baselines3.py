"""What Stable-Baselines3 computes in its rollout buffer, and the call that takes its place.

    class Buffer(RolloutBuffer):
        compute_returns_and_advantage = compute_returns_and_advantage

    PPO("MlpPolicy", envs, rollout_buffer_class=Buffer)

The arrays of a buffer are time-major, (steps, environments), and are used in place. `episode_starts[t]` says that
observation t is the first of an episode, `dones` the same of the observation after the last step. The buffer's loop is
the `backward_loop` of from_cleanrl.py; its returns are those of TD(lambda), advantages + values. The call is equal.

So it is at time limits: there the algorithm adds gamma * V(final observation) to the reward on its way into the buffer,
and has the step count as a termination. `with_time_limits` says the same with rewards that stay the environment's.

The loop is not right where a value is NaN or infinite: it multiplies what lies behind the end of an episode by 0, which
makes NaN of it, in all episodes before that one. The call does not read it.
"""

from types import SimpleNamespace
from typing import Any

import torch
from from_cleanrl import GAMMA, LAMBDA, backward_loop
from rl_triton_gae import compute_gae
from torch import Tensor


def compute_returns_and_advantage(buffer: Any, last_values: Tensor, dones: Any) -> None:
    """The method of a `RolloutBuffer`: fills the arrays `buffer.advantages` and `buffer.returns`."""
    rewards, values, starts, advantages, returns = (
        torch.from_numpy(array)
        for array in (buffer.rewards, buffer.values, buffer.episode_starts, buffer.advantages, buffer.returns)
    )
    compute_gae(
        rewards,
        values,
        starts,
        gamma=buffer.gamma,
        lambda_=buffer.gae_lambda,
        last_value=last_values.detach().cpu().flatten(),
        return_targets=True,
        boundary="starts_at",
        next_start=torch.from_numpy(dones),
        time_dim=0,
        out=(advantages, returns),
    )


def with_time_limits(
    rewards: Tensor, values: Tensor, dones: Tensor, truncateds: Tensor, final_values: Tensor, last_values: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns with time limits told apart.

    `dones[t]` and `truncateds[t]` are what step t returned: done, and `info["TimeLimit.truncated"]`. `final_values[t]`
    is V of `info["terminal_observation"]` where the step was truncated.
    """
    bootstrap_values = final_values.clone()
    bootstrap_values[-1] = torch.where(truncateds[-1], final_values[-1], last_values)
    return compute_gae(
        rewards,
        values,
        dones & ~truncateds,
        truncateds,
        GAMMA,
        LAMBDA,
        bootstrap_values,
        return_targets=True,
        time_dim=0,
    )


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (128, 8)
    rewards, values, final_values = (torch.randn(shape, generator=generator) for _ in range(3))
    last_values = torch.randn(shape[1:], generator=generator)
    dones, at_limit = (torch.rand(shape, generator=generator) < chance for chance in (0.1, 0.5))
    truncateds = dones & at_limit

    # What the algorithm leaves in the buffer: such rewards, and each step's flag at the next one.
    stored = rewards + GAMMA * final_values.masked_fill(~truncateds, 0.0)
    starts = torch.cat((torch.ones(1, shape[1]), dones[:-1].float()))
    arrays = {"rewards": stored.numpy(), "values": values.numpy(), "episode_starts": starts.numpy()}
    results = {name: torch.empty(shape).numpy() for name in ("advantages", "returns")}
    buffer = SimpleNamespace(**arrays, **results, gamma=GAMMA, gae_lambda=LAMBDA)
    compute_returns_and_advantage(buffer, last_values, dones[-1].numpy())

    loop, _ = backward_loop(stored, values, starts, last_values, dones[-1].float())
    apart, _ = with_time_limits(rewards, values, dones, truncateds, final_values, last_values)
    for name, other in (("the buffer's loop", loop), ("time limits told apart", apart)):
        difference = (torch.from_numpy(buffer.advantages) - other).abs().max()
        print(f"The call and {name} differ by {difference:.0e} at most, of advantages up to {other.abs().max():.1f}.")


if __name__ == "__main__":
    main()
