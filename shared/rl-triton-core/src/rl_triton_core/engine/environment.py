"""What the environment says, read once at import, and the warnings that it can turn on."""

from __future__ import annotations

import os
import warnings


def _is_on(name: str) -> bool:
    return os.environ.get(name, "0").strip().lower() not in ("", "0", "false", "off", "no")


PERFORMANCE_WARNINGS = _is_on("RL_TRITON_PERF_WARNINGS")
CORRECTNESS_WARNINGS = _is_on("RL_TRITON_CORRECTNESS_WARNINGS")
DIRECT_LAUNCH = not _is_on("RL_TRITON_ORDINARY_LAUNCH")
INTERPRETER = _is_on("TRITON_INTERPRET")


def warn_performance(message: str) -> None:
    """Say where a call did more work than it had to, if the user asked to be told."""
    if PERFORMANCE_WARNINGS:
        warnings.warn(message, UserWarning, stacklevel=3)


def warn_caller(message: str) -> None:
    """Say what is legal but rarely meant, to whoever called the public function that asked for a warning."""
    warnings.warn(message, UserWarning, stacklevel=4)


# Said once when a call is compiled, and no part of the graph.
warn_caller._dynamo_marked_constant = True  # type: ignore[attr-defined]
