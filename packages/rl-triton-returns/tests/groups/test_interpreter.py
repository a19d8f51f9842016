"""The kernel tests, in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

from rl_triton_core.testing.kernels import run_in_interpreter


def test_kernels_in_the_interpreter() -> None:
    run_in_interpreter(Path(__file__).with_name("test_kernel.py"))
