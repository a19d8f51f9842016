"""The kernel tests, in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from rl_triton_core.testing.kernels import run_in_interpreter


@pytest.mark.parametrize("file", ["test_kernel.py", "test_normalization_kernel.py"])
def test_kernels_in_the_interpreter(file: str) -> None:
    run_in_interpreter(Path(__file__).with_name(file))
