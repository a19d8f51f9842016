"""Worked values: a package's tests/cases/*.json as tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FLAGS = frozenset({"terminateds", "truncateds", "dones"})
_INDICES = frozenset({"actions"})


@dataclass(frozen=True)
class Case:
    """One call with its results: tensors and other parameters by argument name, expected tensors by output name."""

    id: str
    why: str
    inputs: dict[str, Tensor]
    params: dict[str, Any]
    expected: dict[str, Tensor]

    def __str__(self) -> str:
        return self.id


def load_cases(path: Path | str, dtype: torch.dtype = torch.float64) -> list[Case]:
    """All cases of a file. Flags become bool, action indices int64, everything else `dtype`.

    "nan", "inf" and "-inf" stand for the numbers that JSON does not have.
    """
    stored = json.loads(Path(path).read_text(encoding="utf-8"))
    return [
        Case(
            id=case["id"],
            why=case["why"],
            inputs={name: _tensor(entries, _dtype_of(name, dtype)) for name, entries in case["inputs"].items()},
            params={name: _number(value) for name, value in case.get("params", {}).items()},
            expected={name: _tensor(entries, dtype) for name, entries in case["expected"].items()},
        )
        for case in stored["cases"]
    ]


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    if name in _FLAGS:
        return torch.bool
    return torch.int64 if name in _INDICES else dtype


def _tensor(entries: Any, dtype: torch.dtype) -> Tensor:
    return torch.tensor(_numbers(entries), dtype=dtype)


def _numbers(entries: Any) -> Any:
    return [_numbers(entry) for entry in entries] if isinstance(entries, list) else _number(entries)


def _number(value: Any) -> Any:
    """The value itself, unless it spells a number that is not finite."""
    return float(value) if value in ("nan", "inf", "-inf") else value
