"""What a call of compute_group_advantages asks for, beside its tensors."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """The baseline and the scale of group advantages."""

    leave_one_out: bool
    standardize: bool
    unbiased: bool
    eps: float
