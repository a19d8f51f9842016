"""compute_episodic_prefix_sum: sums along time that restart at episode boundaries."""

from __future__ import annotations

from rl_triton_core.boundaries import check_boundary, warn_of_nan
from rl_triton_core.engine.algorithm import Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.dispatch import registered, run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS
from torch import Tensor

from rl_triton_prefix import _torch


def _load_ends_at_tile() -> Tile:
    from rl_triton_prefix import _tile

    return Tile(_tile.ends_at_coefficients, _tile.emit)


def _load_starts_at_tile() -> Tile:
    from rl_triton_prefix import _tile

    return Tile(_tile.starts_at_coefficients, _tile.emit)


def _uniform_decay(numbers: Numbers) -> float:
    return 1.0


def _prefix_sum(boundary: str) -> Algorithm:
    starts_at = boundary == "starts_at"
    return registered(
        Algorithm(
            name=f"compute_episodic_prefix_sum, {boundary}",
            reverse=False,
            fields=(Field("inputs", required=True), Field("dones", flag=True, required=True)),
            row_fields=(Field("seed_values"),),
            outputs=1,
            load_tile=_load_starts_at_tile if starts_at else _load_ends_at_tile,
            coefficients=_torch.starts_at_coefficients if starts_at else _torch.ends_at_coefficients,
            emit=_torch.emit,
            uniform_decay=_uniform_decay,
        ),
        packs=not starts_at,
    )


_PREFIX_SUMS = {boundary: _prefix_sum(boundary) for boundary in ("ends_at", "starts_at")}


def compute_episodic_prefix_sum(
    inputs: Tensor,
    dones: Tensor,
    seed_values: Tensor | None = None,
    boundary: str = "ends_at",
    *,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Sum along time, starting anew in every episode.

        C[t] = inputs[t] + C[t-1]           C[-1] = seed_values
                                            cut where dones[t-1] ("ends_at") or where dones[t] ("starts_at")

    What a boundary hides is never read: NaN before it stays there.

    Args:
        inputs: what each step adds, t = 0 .. T-1. `(num_envs, seq_len)`, `(num_envs, seq_len, features)`, or any shape
            with its time axis named by `time_dim`; float16, bfloat16, float32, float64 or an integer dtype, which
            counts as float32. Strides are honoured as they are: transposed, sliced and expanded views are read in
            place.
        dones: non-zero at a boundary, same shape, any dtype. Flags of shape `(num_envs, seq_len)` serve features as
            `dones.unsqueeze(-1).expand_as(inputs)`, which copies nothing.
        seed_values: C[-1] per row, the shape of inputs without its time axis; None stands for 0. The last sum of the
            window before continues it, where no boundary lies between the two.
        boundary: where a flag stands. "ends_at": at the last step of an episode, by termination or by truncation, so
            that the next step starts anew; no flag hides the seed from the first step. "starts_at": at the first step
            of an episode, which starts anew itself; `dones[0]` hides the seed.
        cu_seqlens: where each of the sequences begins that are packed one after the other along axis 0, of any length,
            and where the last one ends: `(num_sequences + 1,)`, int32 or int64, never decreasing, on the device of
            inputs, where alone it is read. A sequence is then what a row is otherwise, and `seed_values` is
            `(num_sequences, *)` for inputs of `(total_steps, *)`. Steps that belong to no sequence give 0. It goes
            with `time_dim=0` and `boundary="ends_at"`.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        The sums, shaped and laid out in memory like inputs, in the promoted dtype of inputs and seed_values.

    Raises:
        TypeError: an argument that is no dense tensor (boundary: no str), or of a complex or float8 dtype.
        ValueError: shapes that differ, another boundary, or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop;
    integers are summed exactly up to 2**24. Results are bitwise the same from run to run on one device. Differentiable
    in inputs and seed_values.

    Source: Blelloch, "Prefix Sums and Their Applications", 1990, section 1.5 (segmented scans).

    Example:
        >>> import torch
        >>> from rl_triton_prefix import compute_episodic_prefix_sum
        >>> inputs = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> dones = torch.tensor([[False, True, False, False]])
        >>> compute_episodic_prefix_sum(inputs, dones, seed_values=torch.tensor([10.0]))
        tensor([[11., 13.,  3.,  7.]])
        >>> compute_episodic_prefix_sum(inputs, dones, seed_values=torch.tensor([10.0]), boundary="starts_at")
        tensor([[11.,  2.,  5.,  9.]])
    """
    check_boundary(boundary)
    prefix_sums = run(_PREFIX_SUMS[boundary], (inputs, dones), (seed_values,), time_dim, out, cu_seqlens)[0]
    if CORRECTNESS_WARNINGS:
        warn_of_nan({"inputs": inputs, "seed_values": seed_values})
    return prefix_sums
