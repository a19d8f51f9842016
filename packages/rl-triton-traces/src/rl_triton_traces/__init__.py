"""Eligibility traces as a parallel scan, on GPU and CPU."""

from rl_triton_traces._version import __version__
from rl_triton_traces.api import compute_eligibility_traces

__all__ = ["__version__", "compute_eligibility_traces"]
