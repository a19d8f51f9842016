"""Recipes of the READMEs that need more than the package they stand in: they run as they are printed, and are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGES = Path(__file__).resolve().parent.parent / "packages"


def recipe(package: str, heading: str) -> str:
    """The code under a heading of a package's README."""
    readme = (PACKAGES / package / "README.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", readme.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(code)


def test_pengs_q_lambda() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 20)
    names: dict[str, Any] = {
        "rewards": torch.randn(shape, generator=generator, dtype=torch.float64),
        "next_q_values_all": torch.randn(*shape, 4, generator=generator, dtype=torch.float64),
        "terminateds": torch.rand(shape, generator=generator) < 0.1,
        "truncateds": torch.rand(shape, generator=generator) < 0.1,
    }
    given = dict(names)
    exec(recipe("rl-triton-retrace", "Peng's Q(lambda)"), names)
    rewards, next_q, terminateds, truncateds = given.values()
    greedy = next_q.amax(-1)
    expected, after = torch.empty_like(rewards), greedy[:, -1]
    for t in reversed(range(shape[1])):
        # What follows is a mixture of the greedy value and the return; of these, only the value where it was cut off.
        mixed: Tensor = torch.where(truncateds[:, t], greedy[:, t], 0.3 * greedy[:, t] + 0.7 * after)
        after = rewards[:, t] + 0.99 * torch.where(terminateds[:, t], 0.0, mixed)
        expected[:, t] = after
    torch.testing.assert_close(names["targets"], expected)
