"""What an algorithm may hand to the engine."""

from __future__ import annotations

import dataclasses

import pytest
from rl_triton_core import api
from rl_triton_core.engine.algorithm import MOST_FIELDS, MOST_ROW_FIELDS, Field, with_flags_at_starts


def test_no_algorithm_takes_the_way_of_another() -> None:
    """A shortcut asks for arguments alone: found under another algorithm, it would run the wrong kernel."""
    others = (dataclasses.replace(api._BACKWARD, name="other"), with_flags_at_starts(api._BACKWARD))
    assert len({id(algorithm.shortcut) for algorithm in (*others, api._BACKWARD, api._FORWARD)}) == 4


def test_the_kernel_reaches_every_field() -> None:
    """One field more than its loops go would be dropped without a word."""
    extra = tuple(Field(f"extra {i}") for i in range(MOST_FIELDS))
    dataclasses.replace(api._FORWARD, fields=extra, row_fields=extra[:MOST_ROW_FIELDS])
    with pytest.raises(ValueError, match=r"segmented_scan: expected at most 16 fields, got 17"):
        dataclasses.replace(api._FORWARD, fields=(*extra, Field("one more")))
    with pytest.raises(ValueError, match=r"segmented_scan: expected at most 4 row fields, got 5"):
        dataclasses.replace(api._FORWARD, row_fields=extra[: MOST_ROW_FIELDS + 1])
