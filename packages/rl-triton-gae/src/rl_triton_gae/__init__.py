"""Generalised Advantage Estimation as a parallel scan, on GPU and CPU."""

from rl_triton_gae._version import __version__
from rl_triton_gae.api import compute_gae
from rl_triton_gae.normalization import normalize_advantages

__all__ = ["__version__", "compute_gae", "normalize_advantages"]
