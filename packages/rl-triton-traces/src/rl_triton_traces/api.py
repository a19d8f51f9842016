"""compute_eligibility_traces: accumulating eligibility traces."""

from __future__ import annotations

from rl_triton_core.boundaries import warn_of_nan
from rl_triton_core.engine.algorithm import FRACTION, Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.dispatch import registered, run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from torch import Tensor

from rl_triton_traces import _torch


def _load_tile() -> Tile:
    from rl_triton_traces import _tile

    return Tile(_tile.coefficients, _tile.emit)


def _uniform_decay(numbers: Numbers) -> float:
    gamma, lambda_ = numbers
    return gamma * lambda_


_TRACES = registered(
    Algorithm(
        name="compute_eligibility_traces",
        reverse=False,
        fields=(
            Field("gradients", required=True),
            Field("dones", flag=True, required=True),
            Field("gamma", required=True, numbers=FRACTION, per_step=False),
            Field("lambda_", required=True, numbers=FRACTION, per_step=False),
        ),
        row_fields=(Field("seed_values"),),
        outputs=1,
        load_tile=_load_tile,
        coefficients=_torch.coefficients,
        emit=_torch.emit,
        uniform_decay=_uniform_decay,
    )
)


def compute_eligibility_traces(
    gradients: Tensor,
    dones: Tensor,
    gamma: float,
    lambda_: float,
    seed_values: Tensor | None = None,
    *,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Compute accumulating eligibility traces.

        z[t] = gradients[t] + gamma * lambda_ * z[t-1]           cut where dones[t-1]; z[-1] = seed_values

    What an ended episode left behind is never read: NaN in it stays there.

    Args:
        gradients: what each step adds to the trace, such as the gradient or the features of the value of s_t,
            t = 0 .. T-1. `(num_envs, seq_len)`, `(num_envs, seq_len, features)`, or any shape with its time axis named
            by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which counts as float32. Strides
            are honoured as they are: transposed, sliced and expanded views are read in place.
        dones: non-zero at the step that ended an episode, by termination or by truncation, same shape, any dtype. Flags
            of shape `(num_envs, seq_len)` serve features as `dones.unsqueeze(-1).expand_as(gradients)`, which copies
            nothing.
        gamma: discount in [0, 1], one number.
        lambda_: trace decay in [0, 1], one number.
        seed_values: z[-1] per row, the shape of gradients without its time axis; None stands for 0. The last trace of
            the window before continues it, where that window's last step ended no episode. Nothing cuts the first step:
            no flag hides the seed from it.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        The traces, shaped and laid out in memory like gradients, in the promoted dtype of gradients and seed_values.

    Raises:
        TypeError: an argument that is no dense tensor (gamma and lambda_: no number), or of a complex or float8 dtype.
        ValueError: shapes that differ, a number outside [0, 1], or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop.
    Results are bitwise the same from run to run on one device. Differentiable in gradients and seed_values.

    Source: Sutton and Barto, "Reinforcement Learning: An Introduction", 2nd edition, 2018, section 12.2, equation 12.5.

    Example:
        >>> import torch
        >>> from rl_triton_traces import compute_eligibility_traces
        >>> gradients = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
        >>> dones = torch.tensor([[False, True, False, False]])
        >>> compute_eligibility_traces(gradients, dones, gamma=1.0, lambda_=0.5, seed_values=torch.tensor([4.0]))
        tensor([[3.0000, 2.5000, 1.0000, 1.5000]])
    """
    traces = run(_TRACES, (gradients, dones, gamma, lambda_), (seed_values,), time_dim, out)[0]
    if CORRECTNESS_WARNINGS:
        warn_of_nan({"gradients": gradients, "seed_values": seed_values})
    return traces
