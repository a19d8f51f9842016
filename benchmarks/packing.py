"""Variants of entries whose rows are packed one after the other: as many sequences as rows, of any lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import Algorithm, Arguments, Configuration, as_tuple
from benchmarks.rollouts import Rollout
from benchmarks.shapes import variant_cpu_targets, variant_targets
from benchmarks.variants import variant
from benchmarks.whole_arrays import Array, Scan, namespace


def packed(entry: Algorithm) -> Algorithm:
    """The entry with `cu_seqlens`. N x T stands for N sequences of T steps on average."""
    return variant(
        entry,
        "packed",
        draw,
        reference=lambda: _apart(entry.reference()),
        whole=lambda arguments, scan: _as_one_row(entry, arguments, scan),
        targets=tuple(target for target in variant_targets() if not target.configuration.time_major),
        cpu_targets=variant_cpu_targets(),
        is_sequential=_is_small,
        has_loop=False,
    )


def draw(rollout: Rollout, given: Arguments) -> Arguments:
    rows, total = rollout.configuration.rows, rollout.configuration.rows * rollout.configuration.steps
    order = torch.randperm(total - 1, generator=rollout.generator, device=rollout.device)
    cuts = (order[: rows - 1] + 1).sort().values
    ends = torch.tensor([total], device=rollout.device)
    shape = rollout.configuration.shape
    flat = {name: x.reshape(-1) for name, x in given.items() if isinstance(x, Tensor) and x.shape == shape}
    return {**flat, "time_dim": 0, "cu_seqlens": torch.cat([torch.zeros_like(ends), cuts, ends]).int()}


def _as_one_row(entry: Algorithm, arguments: Arguments, scan: Scan) -> Array | tuple[Array, ...]:
    """A single row that is cut where a sequence ends, as by a truncation that continues with its last value."""
    total, bounds = len(arguments["rewards"]), arguments["cu_seqlens"]
    row: Arguments = {
        name: x[None] if getattr(x, "shape", None) == (total,) else x
        for name, x in arguments.items()
        if name not in ("cu_seqlens", "last_value")
    }
    xp = namespace(bounds)
    place = xp.arange(total, device=bounds.device) if xp is torch else xp.arange(total)
    sequence = xp.searchsorted(bounds, place, side="right") - 1
    is_last = (bounds[sequence + 1] - 1 == place)[None]
    truncated = row.get("truncateds")
    row["truncateds"] = is_last if truncated is None else is_last | (truncated != 0)
    if "last_value" in arguments:
        row["bootstrap_values"] = arguments["last_value"][sequence][None]
    outputs = tuple(output[0] for output in as_tuple(entry.whole(row | {"time_dim": 1}, scan)))
    return outputs[0] if len(outputs) == 1 else outputs


def _apart(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The definition of one row, for one sequence after the other."""

    def compute(*, cu_seqlens: Tensor, dtype: torch.dtype = torch.float64, **arguments: Any) -> Any:
        total, last = len(arguments["rewards"]), arguments.pop("last_value", None)
        per_step = {name: x for name, x in arguments.items() if isinstance(x, Tensor) and x.shape == (total,)}
        found = []
        for i, (begin, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
            row = {name: x[None, begin:end] for name, x in per_step.items()}
            behind = {} if last is None else {"last_value": last[i : i + 1]}
            found.append(as_tuple(reference(**(arguments | row | behind | {"time_dim": 1}), dtype=dtype)))
        outputs = tuple(torch.cat([output[0] for output in several]) for several in zip(*found, strict=True))
        return outputs[0] if len(outputs) == 1 else outputs

    return compute


def _is_small(configuration: Configuration) -> bool:
    """Whether a loop over all steps of all sequences is done in seconds."""
    return configuration.rows * configuration.steps <= 4096
