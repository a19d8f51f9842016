"""Retrace(lambda) as a parallel scan, on GPU and CPU."""

from rl_triton_retrace._version import __version__
from rl_triton_retrace.api import compute_retrace

__all__ = ["__version__", "compute_retrace"]
