"""Whole learning steps: they learn, the gate stands in front of them, and their parts are timed. On the CPU, small."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import command_line, document
from benchmarks.collection import Collection
from benchmarks.end_to_end import run
from benchmarks.end_to_end.ppo import EPOCHS, PPO
from benchmarks.end_to_end.scenario import IMPLEMENTATIONS, Clock, Scenario, assign_with, gate
from benchmarks.oracle import WrongResultError
from benchmarks.registry import Arguments, entries
from benchmarks.results import OURS, load

CPU = torch.device("cpu")


def shrunk(scenario: Scenario) -> Scenario:
    """The same with a network and a batch that take no time."""
    make: Any = scenario.make
    if isinstance(make, partial):
        make = partial(make.func, **(make.keywords | {"width": 16}))
    return replace(scenario, size=(8, 4), small=(8, 4), make=make)


SCENARIOS = tuple(map(shrunk, run.SCENARIOS))
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WARM", 0)
    monkeypatch.setattr(run, "REPEATS", 2)
    monkeypatch.setattr(run, "SCENARIOS", SCENARIOS)


@every_scenario
@pytest.mark.parametrize("who", [OURS, "eager loop"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_is_timed_with_its_credit_assignment(scenario: Any, who: str, device: str) -> None:
    step, credit = run.figures_of(scenario, who, torch.device(device))
    assert not step.problem
    assert (step.implementation, credit.implementation) == (who, who)
    assert step.value is not None
    assert credit.value is not None
    assert 0 < credit.value < step.value
    assert step.measure == f"{scenario.name}: step"
    assert credit.measure == f"{scenario.name}: credit assignment"


@every_scenario
def test_wrong_credit_assignment_has_no_figure(scenario: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entries()[scenario.algorithm]
    right = entry.function()

    def wrong(**arguments: Any) -> Any:
        outputs = right(**arguments)
        return tuple(1.001 * x for x in outputs) if isinstance(outputs, tuple) else 1.001 * outputs

    monkeypatch.setattr(run, "entries", lambda: {scenario.algorithm: replace(entry, function=lambda: wrong)})
    (step,) = run.figures_of(scenario, OURS, CPU)
    assert step.value is None
    assert step.problem.startswith("WrongResultError")


@every_scenario
def test_a_step_learns(scenario: Any) -> None:
    workload = scenario.make(CPU, *scenario.small)
    assign = assign_with(OURS, entries()[scenario.algorithm], workload.arguments, values_stay=True)
    assert assign is not None
    network = getattr(workload, "network", None)
    before = [parameter.clone() for parameter in network.parameters()] if network else []
    Clock(CPU).step(lambda: workload.step(assign, Clock(CPU)))
    for old, new in zip(before, network.parameters() if network else (), strict=True):
        assert not torch.equal(old, new)
        assert bool(new.isfinite().all())


@pytest.mark.parametrize(("recompute", "times"), [(False, 1), (True, EPOCHS)])
def test_advantages_are_computed_as_often_as_asked(recompute: bool, times: int) -> None:
    workload, seen = PPO(CPU, 8, 4, 16, recompute), []
    assign = assign_with(OURS, entries()["gae"], workload.arguments, values_stay=True)
    assert assign is not None

    def counted(arguments: Arguments) -> tuple[Any, ...]:
        seen.append(arguments["values"])
        result: tuple[Any, ...] = assign(arguments)
        return result

    workload.step(counted, Clock(CPU))
    assert len(seen) == times
    assert all(not torch.equal(one, seen[0]) for one in seen[1:])


def test_the_gate_lets_none_through_that_is_off() -> None:
    workload = PPO(CPU, 8, 4, 16, False)
    gae = entries()["gae"]
    with pytest.raises(WrongResultError):
        gate(lambda arguments: (arguments["rewards"],), gae, (8, 4), workload.arguments)


@pytest.mark.slow
def test_the_compiled_baseline_takes_part() -> None:
    step, credit = run.figures_of(SCENARIOS[0], "torch.compile", CPU)
    assert not step.problem
    assert credit.value


def test_torchrl_is_left_out_where_it_has_no_place() -> None:
    arguments: Arguments = {}
    for name, stays in (("gae-mask", True), ("vtrace", False)):
        assert assign_with("TorchRL", entries()[name], arguments, values_stay=stays) is None


def test_a_run_goes_on_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["end_to_end", "--device", "cpu", "--baselines", "loop", "--out", str(tmp_path)]
    assert command_line.main(arguments) == 0
    units = 2 * len(run.SCENARIOS)
    (recorded,) = load(tmp_path / "cpu" / "end_to_end.jsonl")
    assert len(recorded.finished) == units
    assert len(recorded.figures) == 2 * units
    assert command_line.main(arguments) == 0
    assert len(load(tmp_path / "cpu" / "end_to_end.jsonl")) == 1

    lines = document.end_to_end(Collection(tmp_path / "cpu"))
    assert lines[0] == "| learner | N x T | what | step | credit assignment | share |"
    assert len(lines) == 2 + units
    assert all(line.endswith("% |") for line in lines[2:])


def test_the_time_limit_leaves_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["end_to_end", "--device", "cpu", "--baselines", "none", "--out", str(tmp_path)]
    assert command_line.main([*arguments, "--time-limit", "1e-9"]) == 3
    assert f"left {len(run.SCENARIOS)} units" in capsys.readouterr().out


def test_baselines_are_named_as_elsewhere() -> None:
    assert run.implementations_named(None) == IMPLEMENTATIONS
    assert run.implementations_named(["compile", "numpy"]) == (OURS, "torch.compile")
