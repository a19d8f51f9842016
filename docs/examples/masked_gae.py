"""Token-level advantages of an LLM's responses: the loops that trainers have, and the call that takes their place.

A row is a response, a token is a step, and `mask` is 0 at tokens that the policy did not write: padding, and what a
tool or an environment wrote into the response. Trainers set rewards and values to 0 there, go through all the tokens
from the last to the first, and use the advantages of those that the policy wrote.

With padding at the end that is right, and `one_call` is equal to it. With masked tokens inside a response it is not:
the token before them is followed by a value of 0, although the response goes on, and what comes after them reaches it
times (gamma * lambda) to the power of how many they are (`decaying_loop`), or not at all where a loop also sets the
advantage to 0 at each (`cutting_loop`). The first is right again at gamma = lambda = 1, where all values in between
cancel; the second is not. A loop that carries the next value and the next advantage over masked tokens unchanged is
right, and so is `one_call`: the advantages are those of the tokens that the policy wrote, as if there were no others.
What stands at the others is not read, so nothing has to be set to 0.

(A reward at a masked last token would be passed over too: `rl_triton_core.masks.rewards_on_valid_steps` moves it.)
"""

import torch
from rl_triton_gae import compute_gae
from torch import Tensor

GAMMA, LAMBDA = 1.0, 0.95


def decaying_loop(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = GAMMA, lambda_: float = LAMBDA
) -> Tensor:
    """A masked token is a step as others are, with no reward and no value."""
    return _loop(rewards, values, mask, gamma, lambda_, carried=torch.ones_like(mask))


def cutting_loop(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = GAMMA, lambda_: float = LAMBDA
) -> Tensor:
    """A masked token has no advantage, for itself and for the tokens before it."""
    return _loop(rewards, values, mask, gamma, lambda_, carried=mask)


def _loop(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lambda_: float, carried: Tensor) -> Tensor:
    rewards, values = (x.masked_fill(mask == 0, 0.0) for x in (rewards, values))
    advantages = torch.zeros_like(rewards)
    value_ahead = advantage_ahead = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * value_ahead - values[:, t]
        advantage_ahead = (delta + gamma * lambda_ * advantage_ahead) * carried[:, t]
        advantages[:, t], value_ahead = advantage_ahead, values[:, t]
    return advantages * mask


def one_call(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = GAMMA, lambda_: float = LAMBDA) -> Tensor:
    """Advantages of the tokens that the policy wrote, 0 at the others."""
    return compute_gae(rewards, values, torch.zeros_like(mask), gamma=gamma, lambda_=lambda_, mask=mask)


def main() -> None:
    # Ten tokens of the policy, six of a tool, ten of the policy, then padding; 1 point for it, of which 0.5 expected.
    mask = torch.tensor([[1] * 10 + [0] * 6 + [1] * 10 + [0] * 4])
    written = mask[0].bool()
    rewards, values = torch.zeros(1, 30), torch.full((1, 30), 0.5)
    rewards[0, 25] = 1.0
    alone = one_call(rewards[:, written], values[:, written], mask[:, written])
    print(f"Advantage of the token before the tool's, if the tool's were not there: {alone[0, 9]:.3f}")
    for function in (one_call, decaying_loop, cutting_loop):
        print(f"{function.__name__:>13}: {function(rewards, values, mask)[0, 9]:.3f}")


if __name__ == "__main__":
    main()
