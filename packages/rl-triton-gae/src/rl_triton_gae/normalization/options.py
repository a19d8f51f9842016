"""How advantages are normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Options(NamedTuple):
    """What a call of normalize_advantages says besides its tensors."""

    group: ProcessGroup | None
    unbiased: bool
    eps: float
    shift_mean: bool
