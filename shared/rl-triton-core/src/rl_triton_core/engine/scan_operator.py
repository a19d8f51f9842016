"""The scan alone as an operator: what the derivative of every algorithm is made of, whoever watches."""

from __future__ import annotations

from torch import Tensor

from rl_triton_core import _torch
from rl_triton_core.engine.algorithm import FRACTION, Algorithm, Field, Numbers, OptionalTensors, Tile
from rl_triton_core.engine.operators import call_operator, define


def scan(u: Tensor, decay: Tensor | float, cut: Tensor | None, *, dim: int, reverse: bool) -> Tensor:
    """What `scan_steps` computes, through an operator. It records nothing; `differentiable_scan` does."""
    return call_operator(_SCANS[reverse], (u, decay, cut), (), dim)[0]


def _load_tile() -> Tile:
    from rl_triton_core import _tile

    return Tile(_tile.coefficients_without_initial, _tile.emit)


def _coefficients(
    fields: OptionalTensors, row_values: OptionalTensors, numbers: Numbers, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    u, decay, cut = fields
    assert u is not None
    return u, numbers[0] if decay is None else decay, cut


def _uniform_decay(numbers: Numbers) -> float:
    return numbers[0]


def _scan(reverse: bool) -> Algorithm:
    fields = (Field("u", required=True), Field("decay", required=True, numbers=FRACTION), Field("cut", flag=True))
    algorithm = Algorithm(
        name="scan, reverse" if reverse else "scan",
        reverse=reverse,
        fields=fields,
        row_fields=(),
        outputs=1,
        load_tile=_load_tile,
        coefficients=_coefficients,
        emit=_torch.emit,
        uniform_decay=_uniform_decay,
        differentiable=False,
    )
    return define(algorithm, None)


_SCANS = {reverse: _scan(reverse) for reverse in (False, True)}
