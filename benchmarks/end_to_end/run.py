"""Measures every scenario with every implementation, and goes on where it was stopped."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.baselines import BY_OPTION
from benchmarks.end_to_end.appo import APPO
from benchmarks.end_to_end.language_model import SAMPLES_PER_PROMPT, TokenGRPO, TokenPPO
from benchmarks.end_to_end.ppo import PPO
from benchmarks.end_to_end.scenario import IMPLEMENTATIONS, Clock, Scenario, assign_with, gate
from benchmarks.guard import guarded
from benchmarks.progress import Progress
from benchmarks.registry import entries
from benchmarks.results import Figure, Results, describe_run, finished_units

NAME = "end_to_end"
STEP, CREDIT = "step", "credit assignment"
WARM, REPEATS = 3, 10
ANT, SMALL = (4096, 128), (16, 8)
TOKENS, FEW_TOKENS = (512, 8192), (16, 32)

SCENARIOS = (
    Scenario("PPO, MLP 256", "gae", ANT, SMALL, partial(PPO, width=256, recompute=False)),
    Scenario("PPO, MLP 1024", "gae", ANT, SMALL, partial(PPO, width=1024, recompute=False)),
    Scenario(
        *("PPO, MLP 256, advantages anew each epoch", "gae", ANT, SMALL, partial(PPO, width=256, recompute=True)),
        values_stay=False,
    ),
    Scenario("Tokens, GAE", "gae-mask", TOKENS, FEW_TOKENS, TokenPPO),
    Scenario("Tokens, GRPO", "returns-groups", TOKENS, FEW_TOKENS, TokenGRPO),
    Scenario("APPO, MLP 256", "vtrace", (64, 32), (8, 8), partial(APPO, width=256), values_stay=False),
)


def figures_of(scenario: Scenario, who: str, device: torch.device) -> Iterator[Figure]:
    """The time of a step, and that of credit assignment in it; none where the implementation has no place for it."""
    size = scenario.size if device.type == "cuda" else scenario.small
    algorithm = entries()[scenario.algorithm]
    workload = scenario.make(device, *size)
    assign = assign_with(who, algorithm, workload.arguments, values_stay=scenario.values_stay)
    if assign is None:
        return
    blank = Figure(scenario.name, *size, "time-major" if workload.arguments.get("time_dim") == 0 else "row-major")
    blank = replace(blank, unit="ms", implementation=who)
    times: list[tuple[float, float]] = []

    def measure(blank: Figure) -> Figure:
        shape = size if scenario.algorithm != "returns-groups" else (size[0] // SAMPLES_PER_PROMPT, SAMPLES_PER_PROMPT)
        gate(assign, algorithm, shape, workload.arguments)
        clock = Clock(device)
        times.extend(clock.step(lambda: workload.step(assign, clock)) for _ in range(WARM + REPEATS))
        return _of(blank, STEP, [step for step, _ in times[WARM:]])

    step = guarded(replace(blank, measure=f"{scenario.name}: {STEP}"), measure)
    yield step
    if step.value is not None:
        yield _of(blank, CREDIT, [credit for _, credit in times[WARM:]])


def _of(blank: Figure, what: str, times: list[float]) -> Figure:
    name = blank.measure.partition(": ")[0]
    middle = statistics.median(times)
    return replace(blank, measure=f"{name}: {what}", value=middle, low=min(times), high=max(times))


def run_scenarios(
    device: torch.device,
    folder: Path | None,
    *,
    resume: bool = True,
    time_limit: float | None = None,
    implementations: tuple[str, ...] = IMPLEMENTATIONS,
) -> tuple[list[Figure], int]:
    """All figures, and how many units the time limit left."""
    if device.type == "cuda":
        # As learners are run: with TensorFloat-32 the networks take less, and credit assignment the larger share.
        torch.set_float32_matmul_precision("high")
    run = describe_run(NAME, NAME, device)
    path = None if folder is None else folder / f"{NAME}.jsonl"
    done = finished_units(path, run) if path is not None and resume else set()
    units = [(scenario, who) for scenario in SCENARIOS for who in implementations]
    units = [unit for unit in units if _id(*unit) not in done]
    measured: list[Figure] = []
    if not units:
        return measured, 0
    with Progress(len(units)) as progress, Results(path, run) as results:
        progress.show(*report.machine_lines(run))
        for i, (scenario, who) in enumerate(units):
            if progress.elapsed + progress.longest_unit > (time_limit or math.inf):
                return measured, len(units) - i
            progress.start(_id(scenario, who))
            figures = list(figures_of(scenario, who, device))
            for figure in figures:
                results.add(figure)
                progress.show(line(figure))
            if not any(figure.problem for figure in figures):
                results.finish(_id(scenario, who))
            measured += figures
            progress.finish()
    return measured, 0


def _id(scenario: Scenario, who: str) -> str:
    return f"{scenario.name}, {who}"


def line(figure: Figure) -> str:
    said = figure.problem or f"{report.number(figure.value, figure.unit)} ({figure.low:.3g} to {figure.high:.3g})"
    return f"{figure.implementation:13} {figure.rows} x {figure.steps}  {figure.measure}: {said}"


def implementations_named(baselines: list[str] | None) -> tuple[str, ...]:
    """Ours and the baselines of these options, all by default."""
    if baselines is None:
        return IMPLEMENTATIONS
    names = [IMPLEMENTATIONS[0], *(BY_OPTION[option].name for option in baselines)]
    return tuple(name for name in names if name in IMPLEMENTATIONS)
