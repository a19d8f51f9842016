"""compute_eligibility_traces: accumulating, replacing and dutch eligibility traces."""

from __future__ import annotations

from typing import Any

from rl_triton_core.boundaries import warn_of_nan
from rl_triton_core.engine.algorithm import FRACTION, Algorithm, Field, Numbers, Tile
from rl_triton_core.engine.arguments import check_choice
from rl_triton_core.engine.dispatch import registered, run
from rl_triton_core.engine.environment import CORRECTNESS_WARNINGS, warn_caller
from rl_triton_core.engine.modes import holds_numbers
from torch import Tensor

from rl_triton_traces import _torch

KINDS = ("accumulating", "replacing", "dutch")


def _load_accumulating_tile() -> Tile:
    from rl_triton_traces import _tile

    return Tile(_tile.accumulating_coefficients, _tile.emit)


def _load_weighted_accumulating_tile() -> Tile:
    from rl_triton_traces import _tile

    return Tile(_tile.weighted_accumulating_coefficients, _tile.weighted_emit)


def _load_replacing_tile() -> Tile:
    from rl_triton_traces import _tile

    return Tile(_tile.replacing_coefficients, _tile.emit)


def _load_weighted_replacing_tile() -> Tile:
    from rl_triton_traces import _tile

    return Tile(_tile.weighted_replacing_coefficients, _tile.weighted_emit)


def _load_dutch_tile() -> Tile:
    from rl_triton_traces import _tile

    return Tile(_tile.dutch_coefficients, _tile.emit)


def _decay(numbers: Numbers) -> float:
    return numbers[0] * numbers[1]


def _derived_numbers(numbers: Numbers) -> Numbers:
    return (_decay(numbers),)


_RATIOS = Field("ratios", required=True)
_ALPHA = Field("alpha", required=True, numbers=FRACTION, per_step=False)


def _traces(name: str, load_tile: Any, coefficients: Any, *more: Field) -> Algorithm:
    """One kind of traces. The decay is one number for all steps unless `more` than it makes a step's."""
    return registered(
        Algorithm(
            name=name,
            reverse=False,
            fields=(
                Field("gradients", required=True),
                Field("dones", flag=True, required=True),
                Field("gamma", required=True, numbers=FRACTION, per_step=False),
                Field("lambda_", required=True, numbers=FRACTION, per_step=False),
                *more,
            ),
            row_fields=(Field("seed_values"),),
            outputs=1,
            load_tile=load_tile,
            coefficients=coefficients,
            emit=_torch.weighted_emit if _RATIOS in more else _torch.emit,
            uniform_decay=None if more else _decay,
            derived_numbers=_derived_numbers if more else None,
        )
    )


_TRACES = _traces("compute_eligibility_traces", _load_accumulating_tile, _torch.accumulating_coefficients)
_REPLACING = _traces("compute_eligibility_traces, replacing", _load_replacing_tile, _torch.replacing_coefficients)
_DUTCH = _traces("compute_eligibility_traces, dutch", _load_dutch_tile, _torch.dutch_coefficients, _ALPHA)
_WEIGHTED = _traces(
    "compute_eligibility_traces, ratios", _load_weighted_accumulating_tile, _torch.accumulating_coefficients, _RATIOS
)
_WEIGHTED_REPLACING = _traces(
    "compute_eligibility_traces, replacing, ratios",
    _load_weighted_replacing_tile,
    _torch.replacing_coefficients,
    _RATIOS,
)


def compute_eligibility_traces(
    gradients: Tensor,
    dones: Tensor,
    gamma: float,
    lambda_: float,
    seed_values: Tensor | None = None,
    *,
    kind: str = "accumulating",
    alpha: float | None = None,
    ratios: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    time_dim: int = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Compute eligibility traces.

        accumulating    z[t] = gradients[t] + gamma * lambda_ * z[t-1]
        replacing       z[t] = gradients[t] where that is not 0, else gamma * lambda_ * z[t-1]
        dutch           z[t] = gradients[t] + gamma * lambda_ * (1 - alpha * gradients[t]) * z[t-1]

    All are cut where dones[t-1], and z[-1] = seed_values. With `ratios`, the importance sampling ratios of off-policy
    data, z[t] is ratios[t] times the whole of the right-hand side. What an ended episode left behind is never read: NaN
    in it stays there. Nor is what a replacing trace replaces.

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
        kind: what a trace does where its feature is met again: "accumulating" adds to what is left of it, "replacing"
            starts anew, "dutch" is in between, as true online TD(lambda) wants it. A replacing trace takes every entry
            that is not 0 for a feature that is there: gradients of a network have none that is 0. "dutch" is for
            features that are 0 or 1, one of them 1 at a time (tabular states, one-hot vectors); with others, one
            feature's trace depends on all features, which is no recursion of each by itself.
        alpha: the step size of the learning rule in [0, 1], one number; for "dutch", which needs it, only. At 0 the
            traces accumulate, at 1 they replace.
        ratios: pi(a_t|s_t) / mu(a_t|s_t) for the action that was taken, not negative, same shape as gradients; None for
            data of the policy itself. Ratios of shape `(num_envs, seq_len)` serve features as
            `ratios.unsqueeze(-1).expand_as(gradients)`. A ratio of 0 makes the trace 0, but is no boundary: NaN before
            it may get past it. Not with "dutch", whose exact off-policy form is not a ratio times its own.
        cu_seqlens: where each of the sequences begins that are packed one after the other along axis 0, of any length,
            and where the last one ends: `(num_sequences + 1,)`, int32 or int64, never decreasing, on the device of
            gradients, where alone it is read. A sequence is then what a row is otherwise, and `seed_values` is
            `(num_sequences, *)` for gradients of `(total_steps, *)`. Steps that belong to no sequence give 0. It goes
            with `time_dim=0`.
        time_dim: the time axis; negative counts from the end. `(T, N)` buffers pass 0.
        out: a buffer for the result, of its shape, dtype and device. It shares no memory with an argument, and no
            gradient can be recorded through it.

    Returns:
        The traces, shaped and laid out in memory like gradients, in the promoted dtype of gradients, seed_values and
        ratios.

    Raises:
        TypeError: an argument that is no dense tensor (gamma, lambda_ and alpha: no number; kind: no str), or of a
            complex or float8 dtype.
        ValueError: shapes that differ, a number outside [0, 1], another kind, alpha with a kind that has none, ratios
            with "dutch", or a time axis that is not there.
        RuntimeError: tensors on different devices, or `out` where a gradient would have to be recorded.

    Numerics: accumulates in float32, or float64 if any input is. The error is at most twice that of a float32 loop.
    Results are bitwise the same from run to run on one device. Differentiable in gradients, seed_values and
    ratios. What a replacing trace replaces has a derivative of 0, and so has a gradient of 0 that leaves the trace what
    it was.

    Source: Sutton and Barto, "Reinforcement Learning: An Introduction", 2nd edition, 2018: equations 12.5
    (accumulating), 12.12 (replacing), 12.11 (dutch, here for one-hot features) and 12.25 (with ratios). Replacing
    traces are from Singh and Sutton, "Reinforcement Learning with Replacing Eligibility Traces", 1996; dutch ones from
    van Seijen and Sutton, "True Online TD(lambda)", 2014.

    Example:
        >>> import torch
        >>> from rl_triton_traces import compute_eligibility_traces
        >>> gradients = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
        >>> dones = torch.tensor([[False, True, False, False]])
        >>> compute_eligibility_traces(gradients, dones, gamma=1.0, lambda_=0.5, seed_values=torch.tensor([4.0]))
        tensor([[3.0000, 2.5000, 1.0000, 1.5000]])
        >>> visits, dones = torch.tensor([[1.0, 1.0, 0.0, 1.0]]), torch.zeros(1, 4)
        >>> compute_eligibility_traces(visits, dones, gamma=1.0, lambda_=0.5, kind="replacing")
        tensor([[1.0000, 1.0000, 0.5000, 1.0000]])
        >>> compute_eligibility_traces(visits, dones, gamma=1.0, lambda_=0.5, kind="dutch", alpha=0.5)
        tensor([[1.0000, 1.2500, 0.6250, 1.1562]])
        >>> ratios = torch.tensor([[1.0, 2.0, 2.0, 0.5]])
        >>> compute_eligibility_traces(visits, dones, gamma=1.0, lambda_=0.5, ratios=ratios)
        tensor([[1.0000, 3.0000, 3.0000, 1.2500]])
    """
    algorithm, fields = _TRACES, (gradients, dones, gamma, lambda_)
    if kind != "accumulating" or alpha is not None or ratios is not None:
        algorithm, more = _variant(kind, alpha, ratios)
        fields += more
    traces = run(algorithm, fields, (seed_values,), time_dim, out, cu_seqlens)[0]
    if CORRECTNESS_WARNINGS:
        warn_of_nan({"gradients": gradients, "seed_values": seed_values, "ratios": ratios})
        if ratios is not None:
            _warn_of_negative(ratios)
        if kind == "dutch":
            _warn_of_features(gradients)
    return traces


def _variant(kind: Any, alpha: Any, ratios: Any) -> tuple[Algorithm, tuple[Any, ...]]:
    """The algorithm for a kind of traces, and what its fields have beyond those of all kinds.

    Raises:
        TypeError: a kind that is no str, or no alpha where one is needed.
        ValueError: another kind, or arguments that do not go with it.
    """
    check_choice("kind", kind, KINDS)
    if kind == "dutch":
        if alpha is None:
            raise TypeError("alpha: expected a float with kind='dutch', the step size of the learning rule, got None")
        if ratios is not None:
            raise ValueError(
                f"ratios: expected None with kind='dutch', got {type(ratios).__name__}; exact off-policy traces of "
                "that kind are not a ratio times what they are on-policy"
            )
        return _DUTCH, (alpha,)
    if alpha is not None:
        raise ValueError(
            f"alpha: expected None with kind={kind!r}, got {type(alpha).__name__}; it belongs to kind='dutch'"
        )
    if ratios is None:
        return _REPLACING if kind == "replacing" else _TRACES, ()
    return _WEIGHTED_REPLACING if kind == "replacing" else _WEIGHTED, (ratios,)


def _warn_of_negative(ratios: Tensor) -> None:
    """Say that there are ratios that no two probabilities have."""
    if holds_numbers(ratios) and bool((ratios.float() < 0).any()):
        warn_caller("ratios: holds a negative number, which is no ratio of probabilities; pass ratios, not logarithms")


def _warn_of_features(gradients: Tensor) -> None:
    """Say that there are features that the dutch trace of each by itself is not exact for."""
    features = gradients.float()
    if holds_numbers(gradients) and bool(((features != 0) & (features != 1) & ~features.isnan()).any()):
        warn_caller("gradients: holds a number other than 0 and 1, for which kind='dutch' is no dutch trace")
