"""Which tests run without being asked for, and which by an option or by the expression of -m."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.perf
def test_perf(): pass

def test_plain(): pass
"""


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ([], "1 passed, 2 skipped"),
        (["--slow"], "2 passed, 1 skipped"),
        (["-m", "slow"], "1 passed, 2 deselected"),
        (["-m", "perf"], "1 passed, 2 deselected"),
        (["-m", "not slow"], "1 passed, 1 skipped, 1 deselected"),
        (["-m", "slow or perf"], "2 passed, 1 deselected"),
    ],
)
def test_marked_tests_run_when_named(options: list[str], outcome: str, tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(TESTS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "-p",
        "no:cacheprovider",
        *options,
        "test_marked.py",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command += [*options, "test_marked.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome in done.stdout, done.stdout + done.stderr
