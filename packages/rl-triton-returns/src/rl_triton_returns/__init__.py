"""Discounted and n-step returns, and group advantages, on GPU and CPU."""

from rl_triton_returns._version import __version__
from rl_triton_returns.api import compute_discounted_returns
from rl_triton_returns.groups.api import compute_group_advantages
from rl_triton_returns.n_step import compute_n_step_returns

__all__ = ["__version__", "compute_discounted_returns", "compute_group_advantages", "compute_n_step_returns"]
