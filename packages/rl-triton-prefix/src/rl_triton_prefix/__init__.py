"""Sums along time that restart at episode boundaries, as a parallel scan, on GPU and CPU."""

from rl_triton_prefix._version import __version__
from rl_triton_prefix.api import compute_episodic_prefix_sum

__all__ = ["__version__", "compute_episodic_prefix_sum"]
