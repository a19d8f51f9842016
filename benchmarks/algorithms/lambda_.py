"""The entry of compute_lambda_returns. Its bounds are microseconds on an H200."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.oracle import scan_by_doubling
from benchmarks.registry import Algorithm, Arguments, Configuration, bytes_once, imported
from benchmarks.rollouts import GAMMA, LAMBDA, Rollout
from benchmarks.shapes import common_cpu_targets, common_safeguards, common_targets


def make_arguments(configuration: Configuration, device: torch.device) -> Arguments:
    rollout = Rollout(configuration, device)
    arguments: Arguments = {
        "rewards": rollout.normal(),
        "next_values": rollout.normal(),
        "terminateds": rollout.flags(),
        "gamma": GAMMA,
        "lambda_": LAMBDA,
        "time_dim": rollout.time_dim,
    }
    if configuration.truncated:
        return {**arguments, "truncateds": rollout.flags(), "bootstrap_values": rollout.normal()}
    return arguments


def vectorised(arguments: Arguments) -> Tensor:
    """G[t] = u[t] + w[t] * G[t+1] with all of u and w at hand."""
    dim, gamma, lambda_ = arguments["time_dim"], arguments["gamma"], arguments["lambda_"]
    rewards, next_values = arguments["rewards"], arguments["next_values"]
    terminated = ended = arguments["terminateds"] != 0
    interrupted = torch.zeros_like(terminated)
    interrupted.select(dim, -1).fill_(True)
    if "truncateds" in arguments:
        truncated = arguments["truncateds"] != 0
        interrupted, ended = interrupted | truncated, ended | truncated
    continuation = torch.where(interrupted, arguments.get("bootstrap_values", next_values), (1 - lambda_) * next_values)
    u = rewards + gamma * torch.where(terminated, 0.0, continuation)
    w = torch.where(ended, 0.0, torch.full_like(u, gamma * lambda_))
    return scan_by_doubling(u, w, dim)


ENTRY = Algorithm(
    name="lambda",
    function=imported("rl_triton_lambda", "compute_lambda_returns"),
    reference=imported("rl_triton_lambda.reference", "compute_lambda_returns"),
    arguments=make_arguments,
    vectorised=vectorised,
    bytes_moved=bytes_once,
    bounds_from="H200",
    targets=common_targets(4.1),
    cpu_targets=common_cpu_targets(),
    safeguards=common_safeguards(),
)
