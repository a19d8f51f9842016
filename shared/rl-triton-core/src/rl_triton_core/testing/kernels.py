"""Where a test of a kernel runs: on a GPU, or in Triton's interpreter, chosen before Triton is imported.

A module of kernel tests says `pytestmark = kernel_marks()`, makes its tensors on `kernel_device()`, and stays small in
the interpreter, which takes about 48 us per scanned step. An ordinary run covers it through `run_in_interpreter`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def kernel_device() -> str:
    """The device on which tensors go through the kernels."""
    return "cpu" if INTERPRETED else "cuda"


def kernel_marks() -> list[Any]:
    """Marks for tests that need kernels: none in the interpreter, `gpu` elsewhere."""
    import pytest

    return [] if INTERPRETED else [pytest.mark.gpu]


def run_in_interpreter(test_file: Path) -> None:
    """Run a file of kernel tests in a process of its own, in Triton's interpreter, and fail as it fails."""
    import pytest

    for name in ("triton", "numpy"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if _version("triton") < (3, 7) and _version("numpy") >= (2, 4):
        pytest.skip("the interpreter of Triton 3.6 does not work with NumPy 2.4")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not gpu",
        "-o",
        "pythonpath=",
        "-p",
        "no:cacheprovider",
        str(test_file),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout[-2000:]


def _version(name: str) -> tuple[int, ...]:
    """Major and minor."""
    return tuple(map(int, importlib.metadata.version(name).split(".")[:2]))
