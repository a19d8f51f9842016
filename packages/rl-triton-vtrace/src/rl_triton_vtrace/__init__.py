"""V-trace targets and advantages as a parallel scan, on GPU and CPU."""

from rl_triton_vtrace._version import __version__
from rl_triton_vtrace.api import compute_vtrace

__all__ = ["__version__", "compute_vtrace"]
