"""Figures in words and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import neighbours, report
from benchmarks.compilation import LENGTHS
from benchmarks.guard import guarded
from benchmarks.monotonicity import faster_though_larger
from benchmarks.registry import Configuration
from benchmarks.results import Figure, Recorded, Run, describe_run


def make_run(**changes: Any) -> Run:
    return replace(describe_run("gae", "release", torch.device("cpu")), **changes)


def make_figure(**changes: Any) -> Figure:
    blank = Figure.of("device", Configuration(4096, 128), "us")
    return replace(blank, value=3.0, low=2.9, high=3.1, bound=2.9, bytes=6815744, of_copy=0.56, **changes)


def test_a_failure_is_a_figure_without_a_value() -> None:
    def fill(blank: Figure) -> Figure:
        raise RuntimeError("first\nsecond")

    figure = guarded(make_figure(), fill)
    assert figure.problem == "RuntimeError: first"


@pytest.mark.parametrize(
    ("value", "bound", "unit", "measure", "expected"),
    [
        (3.04, 2.9, "us", "device", "met"),
        (3.19, 2.9, "us", "device", "short by 10%"),
        (8.0, 8.0, "", "kernels", "met"),
        (9.0, 8.0, "", "kernels", "short by 12%"),
        (1.01, 1.0, "%", "memory", "short by 1%"),
        (1.0, None, "us", "device", "-"),
    ],
)
def test_verdict(value: float, bound: float | None, unit: str, measure: str, expected: str) -> None:
    figure = replace(make_figure(), value=value, bound=bound, unit=unit, measure=measure)
    assert report.verdict(figure) == expected


def test_lengths_are_bounded_by_their_cheaper_neighbour() -> None:
    values = (2.0, 2.2, 3.0, None, 2.0)
    figures = neighbours.with_bounds([replace(make_figure(), value=value, bound=None, unit="ps") for value in values])
    assert [figure.bound for figure in figures] == [pytest.approx(1.3 * v) for v in (2.2, 2.0, 2.2, 2.0)] + [None]


def test_sweeps_hold_about_the_same_number_of_steps() -> None:
    assert list(neighbours.LENGTHS) == sorted(set(neighbours.LENGTHS))
    assert len(set(LENGTHS)) == 200
    assert {min(LENGTHS), max(LENGTHS)} == {1, 4096}


def test_markdown() -> None:
    sweep = [
        replace(make_figure(), measure="2^22 steps", unit="ps", value=value, bound=2.6, steps=steps)
        for steps, value in ((128, 2.0), (129, 4.0))
    ]
    others = [
        replace(make_figure(), measure="first call, compiling", unit="ms", value=1234.0, bound=None),
        replace(make_figure(), measure="kernels", unit="", value=5.0, bound=8.0),
        replace(make_figure(), measure="memory", unit="%", value=0.0, bound=1.0),
        replace(make_figure(), measure="full call, of torch.compile", unit="%", value=20.0, bound=50.0),
        replace(make_figure(), measure="first call", unit="ms", value=2e4, implementation="torch.compile"),
        *sweep,
    ]
    failed = make_figure(problem="RuntimeError: no")
    run = make_run(copy_bandwidth=4e12, empty_launch=1.0)
    text = report.markdown([Recorded(run, [make_figure(), failed, *others])])
    lines = text.splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[2] == (
        "| rl-triton | device | 4096 x 128 | row-major | float32, bool flags "
        "| 3.00 µs | 2.90 µs | met | - | 6.82 | 2272 | 56% |"
    )
    assert "| failed |" in lines[3]
    assert "- First call, compiling: 1234 ms" in lines
    assert "- First call of torch.compile, 4096 x 128: 20000 ms" in lines
    assert "- Full call, of torch.compile, 4096 x 128: 20.0 %, at most 50.0: met" in lines
    assert "- 200 lengths from 1 to 4096, row-major: 5 kernels, at most 8: met" in lines
    assert "- Peak memory beyond the outputs: at most 0.00 % over 1 shapes" in lines
    assert "- Lengths, row-major, 2^22 steps: 2.00 to 4.00 ps a step, 1 of 2 over 1.3 x a neighbour" in lines
    assert "- 4096 x 129, row-major, float32, bool flags: 4.00 ps a step, 54% over 2.60" in lines


def test_terminal_table_is_aligned() -> None:
    header = report.terminal_row(list(report.COLUMNS))
    row = report.terminal_line(make_figure())
    assert header.index("must reach") == row.index("2.90 µs")
    assert "    RuntimeError: no" in report.terminal_line(make_figure(problem="RuntimeError: no"))


@pytest.mark.parametrize(
    ("change", "is_suspicious"),
    [
        ({}, True),
        ({"value": 2.8, "high": 2.85}, False),  # within the tolerance
        ({"high": 2.95}, False),  # within the spread
        ({"steps": 128}, False),  # the same size
        ({"rows": 128}, False),  # neither is the larger
        ({"implementation": "NumPy"}, False),
        ({"inputs": "bfloat16"}, False),
        ({"value": None}, False),
    ],
)
def test_a_larger_problem_that_ran_faster_is_named(change: dict[str, Any], is_suspicious: bool) -> None:
    larger = replace(make_figure(), **({"steps": 256, "value": 2.0, "low": 1.9, "high": 2.1} | change))
    found = faster_though_larger([make_figure(), larger])
    assert len(found) == is_suspicious
    assert all("4096 x 256 took 2 us, and 4096 x 128 3" in line for line in found)
