"""Every function of the rl-triton packages under one name."""

from rl_triton_core import segmented_scan
from rl_triton_gae import compute_gae

from rl_triton._version import __version__

__all__ = ["__version__", "compute_gae", "segmented_scan"]
