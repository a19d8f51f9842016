"""PPO on CartPole-v1 over several processes, each with environments of its own, training one agent together.

    torchrun --standalone --nproc-per-node 2 docs/examples/ppo_data_parallel.py

An environment's steps lie on one rank, so advantages need no communication: every rank hands its own window to
`compute_gae`. What the ranks do share, with gloo between CPUs and NCCL between GPUs, are the statistics that normalise
the advantages, the gradients, and which episodes have ended. Random numbers belong to an environment and not to a rank,
so the learning curve is that of one process with all the environments, but for rounding.
"""

import argparse
import os
import sys
import time

import gymnasium
import torch
import torch.distributed as dist
from ppo_cartpole import (
    EPOCHS,
    LEARNING_RATE,
    MAX_GRADIENT_NORM,
    MINIBATCH,
    NUM_ENVS,
    ROLLOUT_STEPS,
    Agent,
    History,
    Rollout,
    estimate_advantages,
    losses_of,
    parse_arguments,
    rollouts,
    save_curve,
)
from torch import Tensor, nn


class Actor:
    """Samples the actions of this rank's environments; every rank draws the random numbers of all of them."""

    def __init__(self, agent: Agent, mine: slice, seed: int) -> None:
        self.agent, self.mine = agent, mine
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, observations: Tensor) -> Tensor:
        drawn = torch.rand(NUM_ENVS, generator=self.generator)[self.mine].to(observations.device)
        thresholds = self.agent.policy(observations).probs.cumsum(-1)[:, :-1]
        return (drawn.unsqueeze(-1) >= thresholds).sum(-1)


def sum_over_ranks(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def normalised(advantages: Tensor, keep: Tensor) -> Tensor:
    """Less the mean over the trainable steps of all ranks, over their standard deviation."""
    own = advantages[keep].double()
    count, total = sum_over_ranks(torch.stack((keep.sum().double(), own.sum())))
    mean = total / count
    squares = sum_over_ranks((own - mean).square().sum())
    return ((advantages - mean) / ((squares / (count - 1)).sqrt() + 1e-8)).float()


def improve(
    agent: Agent,
    optimizer: torch.optim.Adam,
    rollout: Rollout,
    advantages: Tensor,
    values: Tensor,
    mine: slice,
    generator: torch.Generator,
) -> None:
    """The epochs of one process; each minibatch is spread over the ranks as its steps are."""
    keep, batches = rollout.trainable, ROLLOUT_STEPS * NUM_ENVS // MINIBATCH
    old_log_probs = agent.policy(rollout.observations).log_prob(rollout.actions).detach()
    gains, returns = normalised(advantages, keep), advantages + values
    steps = (rollout.observations, rollout.actions, gains, returns, old_log_probs)
    for _ in range(EPOCHS):
        order = torch.randperm(ROLLOUT_STEPS * NUM_ENVS, generator=generator)
        batch_of = (order.view(ROLLOUT_STEPS, NUM_ENVS)[:, mine] // MINIBATCH).to(keep.device)
        counts = sum_over_ranks(torch.bincount(batch_of[keep], minlength=batches))
        for batch in range(batches):
            chosen = keep & (batch_of == batch)
            loss = losses_of(agent, *(column[chosen] for column in steps)).sum() / counts[batch]
            optimizer.zero_grad()
            loss.backward()
            gradients = [parameter.grad for parameter in agent.parameters()]
            together = sum_over_ranks(nn.utils.parameters_to_vector(gradients))
            nn.utils.vector_to_parameters(together, gradients)
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def merge(history: History, own: History) -> None:
    """Moves the episodes of all ranks from `own` to `history`, in the order in which one process sees them end."""
    ranks = dist.get_world_size()
    gathered: list[list[tuple[int, float, float]]] = [[] for _ in range(ranks)]
    dist.all_gather_object(gathered, own.episodes)
    own.episodes.clear()
    # Ranks hold neighbouring environments, and sorting keeps the order of those that ended together.
    for steps, episode_return, _ in sorted((e for episodes in gathered for e in episodes), key=lambda e: e[0]):
        history.steps = steps * ranks
        history.add_episode(episode_return)
    history.steps = own.steps * ranks


def train(args: argparse.Namespace, history: History) -> bool:
    """Trains until solved or out of steps, and says whether it is solved."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = NUM_ENVS // ranks
    mine = slice(rank * share, (rank + 1) * share)
    torch.manual_seed(args.seed)
    # One by one, with random numbers of their own: environment i of all is seeded by seed + i.
    envs = gymnasium.make_vec("CartPole-v1", num_envs=share, vectorization_mode="sync")
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n).to(args.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    generator = torch.Generator().manual_seed(args.seed)
    own, start, next_line = History(), time.perf_counter(), 0.0
    actor = Actor(agent, mine, args.seed)
    for rollout in rollouts(envs, actor, ROLLOUT_STEPS, own, args.seed + mine.start, args.device):
        merge(history, own)
        solved = history.is_solved(args.target)
        seconds = time.perf_counter() - start
        if rank == 0 and seconds >= next_line:
            print(f"{history.steps:>9,} steps  return {history.mean_return:5.1f}", flush=True)
            next_line = seconds + 2.0
        if solved or history.steps >= args.steps:
            break
        advantages, values, _ = estimate_advantages(rollout, agent.value)
        improve(agent, optimizer, rollout, advantages, values, mine, generator)
    return solved


def join(args: argparse.Namespace) -> None:
    """Joins the other processes that torchrun has started; without it, this one is alone."""
    if args.device.type == "cuda":
        processes, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
        if gpus < processes:
            sys.exit(f"{processes} processes need as many GPUs, and there are {gpus}: --device cpu")
        args.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(args.device)
    backend = "nccl" if args.device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if NUM_ENVS % dist.get_world_size():
        sys.exit(f"{NUM_ENVS} environments cannot be shared equally by {dist.get_world_size()} processes")


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    torch.set_num_threads(1)
    join(args)
    history, start = History(), time.perf_counter()
    solved = train(args, history)
    if dist.get_rank() == 0:
        save_curve(history, args.target, args.out)
        outcome, seconds = "Solved" if solved else "Not solved", time.perf_counter() - start
        machine = f"{seconds:.1f} s, processes: {dist.get_world_size()}"
        print(f"{outcome} after {history.steps:,} steps: {history.average()} ({machine}).")
        print(f"Learning curve: {args.out.absolute()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
