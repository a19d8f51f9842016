"""The data-parallel PPO example: how many processes share the work does not show in what is learned."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for name in ("gymnasium", "rich", "matplotlib"):
    pytest.importorskip(name)

SCRIPT = Path(__file__).parents[1] / "docs" / "examples" / "ppo_data_parallel.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def train(out: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    """Five windows."""
    options = ("--device", "cpu", "--steps", "20000", "--out", str(out))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, *launcher, str(SCRIPT), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def closing_line(out: Path, *launcher: str) -> str:
    """What training says at its end, less what depends on the machine."""
    done = train(out, *launcher)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    found = re.search(r"(Not solved after 20,480 steps: mean return [0-9.]+ .*) \(", done.stdout)
    assert found is not None, done.stdout
    return found[1]


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    alone = closing_line(tmp_path / "alone.png")
    assert closing_line(tmp_path / "together.png", *TORCHRUN, "2") == alone


def test_environments_are_shared_equally(tmp_path: Path) -> None:
    done = train(tmp_path / "curve.png", *TORCHRUN, "3")
    assert done.returncode != 0
    assert "32 environments cannot be shared equally by 3 processes" in done.stderr
