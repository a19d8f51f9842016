"""The segmented scan: y[t] = inputs[t] + decays[t] * y[t-1], cut at resets."""

from __future__ import annotations

from torch import Tensor

from rl_triton_core import _torch
from rl_triton_core.engine.algorithm import Algorithm, Field, Tile
from rl_triton_core.engine.dispatch import registered, run


def _load_tile() -> Tile:
    from rl_triton_core import _tile

    return Tile(_tile.coefficients, _tile.emit)


def _scan(reverse: bool) -> Algorithm:
    algorithm = Algorithm(
        name="segmented_scan, reverse" if reverse else "segmented_scan",
        reverse=reverse,
        fields=(Field("inputs", required=True), Field("decays", required=True), Field("resets", flag=True)),
        row_fields=(Field("initial"),),
        outputs=1,
        load_tile=_load_tile,
        coefficients=_torch.reverse_coefficients if reverse else _torch.forward_coefficients,
        emit=_torch.emit,
        ahead=(),
    )
    return registered(algorithm)


_FORWARD = _scan(reverse=False)
_BACKWARD = _scan(reverse=True)


def segmented_scan(
    inputs: Tensor,
    decays: Tensor,
    *,
    resets: Tensor | None = None,
    initial: Tensor | None = None,
    reverse: bool = False,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Scan a linear recursion along time, cut at resets.

        y[t] = inputs[t] + decays[t] * y[t-1]        (y[t+1] where `reverse`)

    At a reset, y[t] = inputs[t] in both directions: nothing on the far side is read, so NaN and inf stay inside the
    segment that produced them. At the open end (t = 0, or the last step where `reverse`) y continues from `initial`,
    as decays[t] * initial; without it, nothing enters there and the decay is not read.

    Args:
        inputs: what each step adds. `(num_envs, seq_len)`, or any shape with its time axis named by `time_dim`;
            float16, bfloat16, float32, float64 or an integer dtype, which counts as float32. Strides are honoured as
            they are.
        decays: the factor from one step to the next, same shape.
        resets: non-zero where the recursion starts anew, same shape, any dtype.
        initial: the state before the open end, one per row: the shape of `inputs` without its time axis.
        reverse: scan from the last step to the first.
        cu_seqlens: where each of the sequences begins that are packed one after the other along axis 0, of any length,
            and where the last one ends: `(num_sequences + 1,)`, int32 or int64, never decreasing, on the device of
            `inputs`, where alone it is read. A sequence is then what a row is otherwise: it has an open end, and
            `initial` is `(num_sequences, *)` for inputs of `(total_steps, *)`. Steps that belong to no sequence give
            0. It goes with `time_dim=0`.
        time_dim: the time axis; negative counts from the end.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        y, in the promoted dtype of the real inputs and the memory layout of `inputs`.

    Raises:
        TypeError: an argument that is no dense tensor, or has a complex or float8 dtype.
        ValueError: shapes that differ, or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Numerics: accumulates in float32, or float64 if any input is. Differentiable in inputs, decays and initial; the
    derivative for decays[t] is 0 at a reset.

    Source: Blelloch, "Prefix Sums and Their Applications", 1990, section 1.4.

    Example:
        >>> import torch
        >>> from rl_triton_core import segmented_scan
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> segmented_scan(x, torch.full_like(x, 0.5), resets=torch.tensor([[0, 0, 1, 0]]))
        tensor([[1.0000, 2.5000, 3.0000, 5.5000]])
    """
    return run(_BACKWARD if reverse else _FORWARD, (inputs, decays, resets), (initial,), time_dim, out, cu_seqlens)[0]
