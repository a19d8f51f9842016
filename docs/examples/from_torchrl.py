"""A function with the arguments of TorchRL's `vec_generalized_advantage_estimate`, made of one call.

`done` is where a trajectory ended for any reason, `terminated` where it truly did; `next_state_value[t]` is the value
of the state that step t led to, before any reset. TorchRL's layout is (environments, steps, 1), `time_dim=-2`.

`gamma` and `lmbda` are numbers, or have one entry per step: what has fewer is given as `x.expand_as(reward)`.

Advantages, targets and their gradients are equal. TorchRL's function is not right, as of TorchRL 0.14, where
- `gamma` or `lmbda` is the number 0: it raises an IndexError;
- `next_state_value` is NaN or infinite at a terminated step: it is multiplied by 0, and the NaN that this makes fills
  the episode. What follows a termination is not read here;
- tensors are float64 and `gamma` and `lmbda` are numbers: the advantages have float32's precision.
"""

import torch
from rl_triton_gae import compute_gae
from torch import Tensor


def recurrence(
    gamma: float,
    lmbda: float,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor,
) -> tuple[Tensor, Tensor]:
    """What TorchRL's function computes, step by step: a value follows unless terminated, an advantage unless done."""
    delta = reward + gamma * next_state_value * ~terminated - state_value
    advantage = delta.clone()
    for t in reversed(range(reward.shape[-2] - 1)):
        advantage[..., t, :] += gamma * lmbda * advantage[..., t + 1, :] * ~done[..., t, :]
    return advantage, advantage + state_value


def generalized_advantage_estimate(
    gamma: float | Tensor,
    lmbda: float | Tensor,
    state_value: Tensor,
    next_state_value: Tensor,
    reward: Tensor,
    done: Tensor,
    terminated: Tensor | None = None,
    *,
    time_dim: int = -2,
) -> tuple[Tensor, Tensor]:
    """The advantage, and the target of the value function."""
    return compute_gae(
        reward,
        state_value,
        done if terminated is None else terminated,
        done,  # where both are set, the termination counts
        gamma,
        lmbda,
        next_values=next_state_value,
        return_targets=True,
        time_dim=time_dim,
    )


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    state_value, next_state_value, reward = torch.randn(3, 8, 128, 1, generator=generator)
    done, over = torch.rand(2, 8, 128, 1, generator=generator) < torch.tensor([0.1, 0.5]).view(2, 1, 1, 1)
    given = [0.99, 0.95, state_value, next_state_value, reward, done, done & over]
    advantage, _ = generalized_advantage_estimate(*given)
    difference = (advantage - recurrence(*given)[0]).abs().max()
    print(f"The call and the loop differ by {difference:.0e} at most, of advantages up to {advantage.abs().max():.1f}.")

    given[3] = next_state_value.masked_fill(done & over, float("nan"))
    nans = (function(*given)[0].isnan() for function in (recurrence, generalized_advantage_estimate))
    lost, kept = (x.float().mean() for x in nans)
    print(f"NaN behind terminations makes {lost:.0%} of the loop's advantages NaN, and {kept:.0%} of the call's.")


if __name__ == "__main__":
    main()
