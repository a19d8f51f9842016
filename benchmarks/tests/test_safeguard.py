"""Speed itself, on a GPU: floors relative to what the same run measures of others, and the whole sweep."""

from __future__ import annotations

import pytest
import torch

from benchmarks import report
from benchmarks.registry import Algorithm, entries
from benchmarks.suite import Outcome, Plan, run_plan
from benchmarks.suites import Suite, units_of

GUARDED = [name for name, algorithm in entries().items() if algorithm.safeguards]


def measured(algorithm: Algorithm, suite: Suite, baselines: list[str] | None) -> Outcome:
    device = torch.device("cuda", torch.cuda.current_device())
    units = units_of(algorithm, suite, device, baselines)
    outcome = Outcome()
    run_plan(Plan(suite, device, {algorithm.name: units}, folder=None), outcome)
    return outcome


@pytest.mark.gpu
@pytest.mark.perf
@pytest.mark.parametrize("name", GUARDED)
def test_an_algorithm_keeps_its_distance(name: str) -> None:
    figures = measured(entries()[name], "safeguard", None).figures
    assert any("of torch.compile" in figure.measure for figure in figures)
    assert not [report.terminal_line(figure) for figure in figures if figure.problem or figure.is_short]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", entries())
def test_the_whole_sweep_is_right_everywhere(name: str) -> None:
    figures = measured(entries()[name], "release", []).figures
    assert not [report.terminal_line(figure) for figure in figures if figure.problem]


def test_every_algorithm_is_guarded() -> None:
    assert [name for name in entries() if "-" not in name] == GUARDED
