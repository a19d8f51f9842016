"""Lambda-returns as a parallel scan, on GPU and CPU."""

from rl_triton_lambda._version import __version__
from rl_triton_lambda.api import compute_lambda_returns

__all__ = ["__version__", "compute_lambda_returns"]
