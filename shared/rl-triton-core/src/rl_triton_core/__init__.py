"""The engine of rl-triton: segmented linear scans on GPU and CPU, for its credit-assignment estimators."""

from rl_triton_core._version import __version__
from rl_triton_core.api import segmented_scan
from rl_triton_core.compile_ahead import warmup

__all__ = ["__version__", "segmented_scan", "warmup"]
