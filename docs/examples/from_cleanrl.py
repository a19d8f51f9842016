"""The backward loop of a CleanRL script, and the call that takes its place.

The buffers are time-major, (steps, environments). `dones[t]` says that observation t is the first of an episode, and
`next_done` says the same of the observation after the last step; `compute_gae` reads both where they stand.

The loop is right about terminations, and the call is equal to it. Where a script makes `next_done` of terminations and
truncations together, the loop takes a time limit for a termination: nothing follows the step that was only cut off.
`with_time_limits` is the call for the two kept apart. (In a vector environment that resets at the next step, the step
that resets is in the buffer too, and belongs to no episode: `rl_triton_core.autoreset.from_gymnasium` finds it.)
"""

import torch
from rl_triton_gae import compute_gae
from torch import Tensor

GAMMA, LAMBDA = 0.99, 0.95


def backward_loop(
    rewards: Tensor, values: Tensor, dones: Tensor, next_value: Tensor, next_done: Tensor
) -> tuple[Tensor, Tensor]:
    """Advantages and returns, one step of all environments after the other, as the scripts compute them."""
    advantages = torch.empty_like(rewards)
    value_ahead, done_ahead, advantage_ahead = next_value, next_done, torch.zeros_like(next_value)
    for t in reversed(range(len(rewards))):
        continues = 1.0 - done_ahead
        delta = rewards[t] + GAMMA * value_ahead * continues - values[t]
        advantages[t] = advantage_ahead = delta + GAMMA * LAMBDA * advantage_ahead * continues
        value_ahead, done_ahead = values[t], dones[t]
    return advantages, advantages + values


def one_call(
    rewards: Tensor, values: Tensor, dones: Tensor, next_value: Tensor, next_done: Tensor
) -> tuple[Tensor, Tensor]:
    """The same."""
    return compute_gae(
        rewards,
        values,
        dones,
        gamma=GAMMA,
        lambda_=LAMBDA,
        last_value=next_value,
        return_targets=True,
        boundary="starts_at",
        next_start=next_done,
        time_dim=0,
    )


def with_time_limits(
    rewards: Tensor,
    values: Tensor,
    terminated_before: Tensor,
    truncated_before: Tensor,
    next_terminated: Tensor,
    next_truncated: Tensor,
    final_values: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same where `dones` and `next_done` are kept as two, terminations and time limits.

    `final_values[t]` is V of the final observation where step t was cut off, and V of the next one in the last row.
    """
    return compute_gae(
        rewards,
        values,
        terminated_before,
        truncated_before,
        GAMMA,
        LAMBDA,
        final_values,
        return_targets=True,
        boundary="starts_at",
        next_start=(next_terminated, next_truncated),
        time_dim=0,
    )


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    steps, environments = 128, 8
    rewards = torch.randn(steps, environments, generator=generator)
    # The last row of either is the observation after the window.
    values = torch.randn(steps + 1, environments, generator=generator)
    dones = (torch.rand(steps + 1, environments, generator=generator) < 0.05).float()
    rollout = (rewards, values[:-1], dones[:-1], values[-1], dones[-1])
    advantages, _ = one_call(*rollout)
    difference = (advantages - backward_loop(*rollout)[0]).abs().max()
    print(
        f"The call and the loop differ by {difference:.0e} at most, of advantages up to {advantages.abs().max():.1f}."
    )

    # What earns 0.1 a step for ever is worth 10 at each; the time limit comes at the end of the window.
    earned, worth, nothing, limit = torch.full((4, 1), 0.1), torch.full((4, 1), 10.0), torch.zeros(4, 1), torch.ones(1)
    taken_for_end, _ = one_call(earned, worth, nothing, worth[-1], limit)
    cut_off, _ = with_time_limits(earned, worth, nothing, nothing, torch.zeros(1), limit, worth)
    print(f"A time limit that is taken for a termination: {taken_for_end[-1, 0]:.1f}; cut off: {cut_off[-1, 0]:.1f}.")


if __name__ == "__main__":
    main()
