"""Options, markers and skips of every test in the tree. Needs torch and pytest, nothing else."""

from __future__ import annotations

import importlib.metadata
import re

import pytest
import torch

try:
    import hypothesis
except ModuleNotFoundError:
    pass
else:
    # The first example of a test may compile or warm up, so no time limit for one example.
    hypothesis.settings.register_profile("rl-triton", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("rl-triton")

MARKERS = {
    "gpu": "needs a GPU with Triton; skipped where torch sees none (--require-gpu: an error instead)",
    "perf": "compares timings, so it wants a quiet machine; runs with --perf, or where -m names it",
    "slow": "takes more than a few seconds; runs with --slow, or where -m names it",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rl-triton")
    group.addoption("--slow", action="store_true", help="also run the tests marked slow")
    group.addoption("--perf", action="store_true", help="also run the tests marked perf")
    group.addoption("--require-gpu", action="store_true", help="stop if torch sees no GPU, instead of skipping")


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    if config.getoption("--require-gpu") and not torch.cuda.is_available():
        raise pytest.UsageError("--require-gpu: torch.cuda.is_available() is False")


def pytest_report_header() -> str:
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"torch {torch.__version__}, triton {triton}, {device}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skips = {}
    if not torch.cuda.is_available():
        skips["gpu"] = pytest.mark.skip(reason="needs a GPU: torch.cuda.is_available() is False")
    # Tests that an expression leaves out are not run anyway.
    named = re.findall(r"\w+", config.getoption("-m"))
    for name in ("perf", "slow"):
        if not config.getoption(f"--{name}") and name not in named:
            skips[name] = pytest.mark.skip(reason=f"marked {name}: run with --{name}")
    for item in items:
        for name, skip in skips.items():
            if item.get_closest_marker(name):
                item.add_marker(skip)
