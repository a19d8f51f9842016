"""Discounted returns as a parallel scan, on GPU and CPU."""

from rl_triton_returns._version import __version__
from rl_triton_returns.api import compute_discounted_returns

__all__ = ["__version__", "compute_discounted_returns"]
