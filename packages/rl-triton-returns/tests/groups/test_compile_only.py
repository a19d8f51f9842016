"""The kernel of group advantages compiles for NVIDIA and AMD without a GPU, and spills nothing."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import pytest
import torch
from rl_triton_core.testing.compile_only import Compiling, spilled_bytes, standing_in
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_returns.groups._launch import launch
from rl_triton_returns.groups.options import Options

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

GRPO, RLOO = Options(False, True, True, 1e-6), Options(True, False, True, 1e-6)
# The numbers are never read.
REWARDS, IDS, COUNTED = torch.empty(64), torch.empty(64, dtype=torch.int64), torch.empty(64, dtype=torch.bool)
TOKENS = torch.empty(64, 512, dtype=torch.bool)
CALLS: dict[str, tuple[Any, ...]] = {
    "ids": (REWARDS, IDS, None, None, GRPO),
    "leave one out": (REWARDS, IDS.int(), COUNTED, None, RLOO),
    "rows": (REWARDS.view(16, 4), None, COUNTED.float().view(16, 4), None, GRPO),
    "tokens": (REWARDS, IDS, None, TOKENS, GRPO),
    "tokens apart": (REWARDS.double().view(16, 4), None, None, TOKENS.view(16, 4, 512)[..., ::3], RLOO),
    "tokens of bfloat16": (REWARDS.bfloat16(), IDS, None, TOKENS, GRPO),
    "integers": (COUNTED, IDS, None, TOKENS.long(), GRPO),
}


def compiled(call: str, backend: str = "cuda", arch: int | str = 90) -> Any:
    """The one kernel that a call launches."""
    from rl_triton_returns.groups import _tile

    rewards, group_ids, counted, tokens, options = CALLS[call]
    dtype = rewards.dtype if rewards.is_floating_point() else torch.float32
    advantages = torch.empty((rewards if tokens is None else tokens).shape, dtype=dtype)
    compiling = Compiling(_tile.group_advantages)
    with mock.patch.object(_tile, "group_advantages", compiling), standing_in(backend, arch):
        launch(rewards, group_ids, counted, tokens, options, advantages)
    (kernel,) = compiling.kernels
    return kernel


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("call", CALLS)
def test_compiles_without_spills(call: str, backend: str, arch: int | str) -> None:
    assert spilled_bytes(compiled(call, backend, arch)) == 0


def test_tokens_are_read_and_written_as_vectors() -> None:
    accesses = re.findall(r"(?:ld|st)\.global[\w.]*", compiled("tokens").asm["ptx"])
    # Bools eight at a time; nothing else is narrower than a reward.
    assert "ld.global.v2.b32" in accesses
    assert "ld.global.b8" not in accesses
    assert [access for access in accesses if access.startswith("st")] == ["st.global.v4.b32"] * 2
