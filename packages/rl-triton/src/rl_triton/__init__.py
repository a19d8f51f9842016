"""Every function of the rl-triton packages under one name."""

from rl_triton_core import segmented_scan, warmup
from rl_triton_gae import compute_gae, normalize_advantages
from rl_triton_lambda import compute_lambda_returns
from rl_triton_prefix import compute_episodic_prefix_sum
from rl_triton_retrace import compute_retrace, compute_retrace_continuous
from rl_triton_returns import compute_discounted_returns, compute_group_advantages, compute_n_step_returns
from rl_triton_traces import compute_eligibility_traces
from rl_triton_vtrace import compute_vtrace

from rl_triton._version import __version__

__all__ = [
    "__version__",
    "compute_discounted_returns",
    "compute_eligibility_traces",
    "compute_episodic_prefix_sum",
    "compute_gae",
    "compute_group_advantages",
    "compute_lambda_returns",
    "compute_n_step_returns",
    "compute_retrace",
    "compute_retrace_continuous",
    "compute_vtrace",
    "normalize_advantages",
    "segmented_scan",
    "warmup",
]
