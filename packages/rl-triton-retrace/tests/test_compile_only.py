"""The kernels of Retrace compile without a GPU: no spills, and vector loads of the actions."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rl_triton_core.engine.algorithm import Algorithm
from rl_triton_core.testing.compile_only import compiled_kernels, spilled_bytes
from rl_triton_core.testing.kernels import INTERPRETED
from rl_triton_retrace.api import _RETRACE
from rl_triton_retrace.continuous import _ALGORITHMS

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")

# A problem for every tile of the plan: environments and steps.
PROBLEMS = [
    (64, 128),
    (4096, 128),
    (64, 300),
    (64, 500),
    (64, 1000),
    (64, 2000),
    (1400, 3000),
    (600, 3000),
    (140, 3000),
    (2, 8192),
]


def compiled(
    rows: int,
    steps: int,
    actions: int,
    time_dim: int = 1,
    dtype: torch.dtype = torch.float32,
    algorithm: Algorithm = _RETRACE.ends_at,
    **target: Any,
) -> list[Any]:
    shape = (rows, steps) if time_dim == 1 else (steps, rows)
    x, of_actions = torch.empty(shape, dtype=dtype), torch.empty((*shape, actions), dtype=dtype)
    flags, taken = torch.empty(shape, dtype=torch.bool), torch.empty(shape, dtype=torch.int64)
    fields = (x, of_actions, of_actions, None, x, x, taken, flags, flags, None, 0.99, 0.95, 1.0, 1.0)
    row_fields: tuple[Any, ...] = (torch.empty((rows, actions), dtype=dtype),)
    if algorithm is _RETRACE.starts_at:
        row_fields += (torch.empty(rows, dtype=torch.bool),) * 2
    return compiled_kernels(algorithm, fields, row_fields, time_dim, **target)


@pytest.mark.parametrize("actions", [1, 4, 6, 18, 128, 1000])
@pytest.mark.parametrize(("rows", "steps"), PROBLEMS)
def test_compiles_for_hopper(rows: int, steps: int, actions: int) -> None:
    kernels = compiled(rows, steps, actions)
    for kernel in kernels:
        assert spilled_bytes(kernel) == 0
        # Actions are read from three tensors; of 6 and of 18, two at a time are as many as alignment admits.
        if actions in (6, 18):
            assert len(re.findall(r"ld\.global(?:\.\w+)*\.v2\.b32", kernel.asm["ptx"])) >= 3
        elif actions == 4:
            assert len(re.findall(r"ld\.global(?:\.\w+)*\.v4\.b32", kernel.asm["ptx"])) >= 3
        elif actions >= 32:
            # Fetched ahead, sixteen bytes at a time.
            assert len(re.findall(r"cp\.async\S* [^;]*, 0x10,", kernel.asm["ptx"])) >= 3
            assert kernel.metadata.shared <= 99 * 1024


@pytest.mark.parametrize("actions", [4, 18, 128])
@pytest.mark.parametrize("time_dim", [0, 1])
def test_flags_at_starts_compile(actions: int, time_dim: int) -> None:
    for rows, steps in ((4096, 100), (2, 8192)):
        for kernel in compiled(rows, steps, actions, time_dim, algorithm=_RETRACE.starts_at):
            # Time-major, Triton 3.9 keeps a few registers of the 32 actions' sums in memory.
            assert spilled_bytes(kernel) <= (24 if (actions, time_dim) == (18, 0) else 0)


@pytest.mark.parametrize("actions", [4, 18, 128])
@pytest.mark.parametrize(("rows", "steps"), [(4096, 16), (4096, 100), (4096, 300), (16, 2048)])
def test_compiles_time_major(rows: int, steps: int, actions: int) -> None:
    for kernel in compiled(rows, steps, actions, time_dim=0):
        assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize("time_dim", [0, 1])
@pytest.mark.parametrize("actions", [4, 6, 18, 128])
@pytest.mark.parametrize("rows", [40, 600, 4096])
def test_few_kernels_serve_all_lengths(monkeypatch: pytest.MonkeyPatch, rows: int, actions: int, time_dim: int) -> None:
    from rl_triton_core.engine import kernels

    compiled_for: dict[str, int] = {}
    monkeypatch.setattr(
        kernels.scan, "_do_compile", lambda key, *rest, **more: compiled_for.setdefault(str(key), steps) and None
    )
    # The neighbourhood of every tile's size, and every residue elsewhere.
    lengths = {t for centre in range(0, 4097, 256) for t in range(centre - 9, centre + 10)} | set(range(1, 4097, 13))
    for steps in sorted(lengths & set(range(1, 4097))):
        compiled(rows, steps, actions, time_dim)
    assert 0 < len(compiled_for) <= 8, f"one more kernel at each of {sorted(compiled_for.values())}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("actions", [4, 128])
def test_compiles_for_other_dtypes(dtype: torch.dtype, actions: int) -> None:
    for time_dim in (1, 0):
        (kernel,) = compiled(4096, 128, actions, time_dim, dtype)
        assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize("actions", [4, 128])
@pytest.mark.parametrize("time_dim", [1, 0])
def test_compiles_for_amd(actions: int, time_dim: int) -> None:
    (kernel,) = compiled(4096, 128, actions, time_dim, backend="hip", arch="gfx942")
    assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize(("backend", "arch"), [("cuda", 90), ("hip", "gfx942")])
@pytest.mark.parametrize("layout", ["row-major", "time-major"])
@pytest.mark.parametrize("trace", _ALGORITHMS)
@pytest.mark.parametrize("option", ["everything", "nothing"])
def test_continuous_actions_compile(option: str, trace: str, layout: str, backend: str, arch: int | str) -> None:
    rows, steps = 32, 128
    x = torch.empty((rows, steps) if layout == "row-major" else (steps, rows))
    flags = torch.empty(x.shape, dtype=torch.bool)
    fields = (x, x, x, x, x, flags, flags, x, x, x, 1.0, 1.0)
    if option == "nothing":
        read = trace != "harutyunyan", trace in ("retrace", "importance")
        fields = (x, x, *(x if needed else None for needed in read), x, flags, None, None, 0.99, 0.95, 1.0, 1.0)
    (kernel,) = compiled_kernels(
        _ALGORITHMS[trace], fields, (), 1 if layout == "row-major" else 0, backend=backend, arch=arch
    )
    assert spilled_bytes(kernel) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("trace", _ALGORITHMS)
def test_long_rows_of_continuous_actions_compile(trace: str, dtype: torch.dtype) -> None:
    x = torch.empty(2, 16384, dtype=dtype)
    fields = (x, x, x, x, x, torch.empty(x.shape, dtype=torch.bool), None, x, 0.99, 0.95, 1.0, 1.0)
    kernels = compiled_kernels(_ALGORITHMS[trace], fields, (), 1)
    assert len(kernels) == 2
    for kernel in kernels:
        assert spilled_bytes(kernel) == 0
