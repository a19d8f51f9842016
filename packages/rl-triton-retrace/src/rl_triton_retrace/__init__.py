"""Retrace(lambda) and its kin as a parallel scan, on GPU and CPU."""

from rl_triton_retrace._version import __version__
from rl_triton_retrace.api import compute_retrace
from rl_triton_retrace.continuous import compute_retrace_continuous

__all__ = ["__version__", "compute_retrace", "compute_retrace_continuous"]
