"""The benchmarks themselves: their entries, bounds, gate, files and tables. No timing is judged here."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import command_line, compilation, neighbours, report, suite, targets, timing
from benchmarks.guard import guarded
from benchmarks.registry import Algorithm, Configuration, Target, entries
from benchmarks.results import Figure, Results, Run, describe_run
from benchmarks.results import load as load_results

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
COPY_BANDWIDTH = 4.08e12


@pytest.fixture
def gae() -> Algorithm:
    return entries()["gae"]


def make_run(**changes: Any) -> Run:
    return replace(describe_run("gae", "full", CPU), **changes)


def make_figure(**changes: Any) -> Figure:
    blank = Figure.of("device", Configuration(4096, 128), "us")
    return replace(blank, value=3.0, low=2.9, high=3.1, bound=2.9, bytes=6815744, of_copy=0.56, **changes)


def test_a_failure_is_a_figure_without_a_value() -> None:
    def fill(blank: Figure) -> Figure:
        raise RuntimeError("first\nsecond")

    figure = guarded(make_figure(), fill)
    assert figure.problem == "RuntimeError: first"


# Verdicts


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
    assert len(set(compilation.LENGTHS)) == 200
    assert {min(compilation.LENGTHS), max(compilation.LENGTHS)} == {1, 4096}


# Files and tables


def test_results_survive_the_file(tmp_path: Path) -> None:
    run, figures = make_run(copy_bandwidth=4e12), [make_figure(), make_figure(problem="out of memory")]
    with Results(tmp_path / "new", run) as results:
        for figure in figures:
            results.add(figure)
    assert results.path == tmp_path / "new" / "gae-cpu.jsonl"
    lines = [json.loads(line) for line in results.path.read_text(encoding="utf-8").splitlines()]
    assert [list(line) for line in lines] == [["run"], ["figure"], ["figure"]]
    assert set(lines[0]["run"]) == set(asdict(run))
    assert load_results(results.path) == (run, figures)


def test_a_line_is_written_before_the_next_figure(tmp_path: Path) -> None:
    results = Results(tmp_path, make_run())
    assert results.path is not None
    with results:
        results.add(make_figure())
        assert load_results(results.path)[1] == [make_figure()]


@pytest.mark.parametrize(
    ("suite_name", "device", "label"),
    [("full", "NVIDIA H200", "gae-nvidia-h200"), ("quick", "CPU", "gae-quick-cpu"), ("full", "A  B", "gae-a-b")],
)
def test_label(suite_name: str, device: str, label: str) -> None:
    assert make_run(suite=suite_name, device=device).label == label


def test_run_names_its_circumstances() -> None:
    run = make_run()
    assert run.torch == torch.__version__
    assert run.python == sys.version.split()[0]
    assert run.date.startswith("20")


def test_markdown() -> None:
    sweep = [
        replace(make_figure(), measure="2^22 steps", unit="ps", value=value, bound=2.6, steps=steps)
        for steps, value in ((128, 2.0), (129, 4.0))
    ]
    others = [
        replace(make_figure(), measure="first call, compiling", unit="ms", value=1234.0, bound=None),
        replace(make_figure(), measure="kernels", unit="", value=5.0, bound=8.0),
        replace(make_figure(), measure="memory", unit="%", value=0.0, bound=1.0),
        *sweep,
    ]
    failed = make_figure(problem="RuntimeError: no")
    text = report.markdown(make_run(copy_bandwidth=4e12, empty_launch=1.0), [make_figure(), failed, *others])
    lines = text.splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[2] == (
        "| device | 4096 x 128 | row-major | float32, bool flags | 3.00 µs | 2.90 µs | met | - | 6.82 | 2272 | 56% |"
    )
    assert "| failed |" in lines[3]
    assert "- First call, compiling: 1234 ms" in lines
    assert "- 200 lengths from 1 to 4096, row-major: 5 kernels, at most 8: met" in lines
    assert "- Peak memory beyond the outputs: at most 0.00 % over 1 shapes" in lines
    assert "- Lengths, row-major, 2^22 steps: 2.00 to 4.00 ps a step, 1 of 2 over 1.3 x a neighbour" in lines
    assert "- 4096 x 129, row-major, float32, bool flags: 4.00 ps a step, 54% over 2.60" in lines


def test_terminal_table_is_aligned() -> None:
    header = report.terminal_row(list(report.COLUMNS))
    row = report.terminal_line(make_figure())
    assert header.index("must reach") == row.index("2.90 µs")
    assert "    RuntimeError: no" in report.terminal_line(make_figure(problem="RuntimeError: no"))


# Runs


@pytest.fixture
def tiny_gae(gae: Algorithm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Algorithm]:
    """GAE in sizes that take no time, found by the command line."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(timing, "TRIALS", 2)
    monkeypatch.setattr(timing, "wall_time", partial(timing.wall_time, seconds_per_trial=0.001))
    wall = Target(Configuration(4, 16), "wall", bound=1e6, quick=True)
    small = [
        Target(Configuration(4, 16), "device", bound=1e9, quick=True),
        Target(Configuration(4, 16, truncated=True), "full call", of_add=1e9),
        Target(Configuration(3, 8, time_major=True), "amortised", of_add=1e9),
    ]
    guards = (Target(Configuration(4, 16), "device", of_copy=1e-12),)
    entry = replace(gae, targets=tuple(small), cpu_targets=(wall,), safeguards=guards)
    monkeypatch.setattr(command_line, "entries", lambda: {"gae": entry})
    yield entry
    torch.set_num_threads(threads)


def test_cpu_run(tiny_gae: Algorithm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["gae", "--device", "cpu", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert output.endswith(f"1 figures: 1 bounds met, 0 short, 0 failed; {tmp_path / 'gae-cpu.jsonl'}\n")
    run, (figure,) = load_results(tmp_path / "gae-cpu.jsonl")
    assert run.device == "CPU"
    assert figure.value is not None
    assert 0 < figure.value < 1e6
    assert figure.low is not None
    assert figure.add is not None
    assert figure.bytes == 4 * 16 * 13 + 4 * 4
    assert command_line.main(["report", str(tmp_path / "gae-cpu.jsonl")]) == 0
    assert "| wall | 4 x 16 |" in capsys.readouterr().out


def test_wrong_results_show_no_figure(
    tiny_gae: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(tiny_gae, function=lambda: lambda **arguments: torch.zeros(4, 16))
    monkeypatch.setattr(command_line, "entries", lambda: {"gae": wrong})
    assert command_line.main(["gae", "--device", "cpu", "--out", str(tmp_path)]) == 1
    (figure,) = load_results(tmp_path / "gae-cpu.jsonl")[1]
    assert figure.value is None
    assert "WrongResultError: wrong result: relative error" in capsys.readouterr().out


class FakeEvent:
    """An event that the host's clock stands in for."""

    clock = itertools.count(1)

    def record(self) -> None:
        self.at = next(self.clock)

    def elapsed_time(self, end: FakeEvent) -> float:
        return float(end.at - self.at)


class FakeGraph:
    def replay(self) -> None:
        time.sleep(0)


@pytest.fixture
def pretended_gpu(tiny_gae: Algorithm, monkeypatch: pytest.MonkeyPatch) -> Algorithm:
    """The run of a GPU with CPU tensors: everything but the device itself."""

    @contextlib.contextmanager
    def capture(graph: FakeGraph) -> Iterator[None]:
        yield

    fakes = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "get_device_name": lambda device: "NVIDIA H200",
        "Event": lambda enable_timing: FakeEvent(),
        "CUDAGraph": FakeGraph,
        "graph": capture,
        "memory_allocated": lambda device: 0,
        "max_memory_allocated": lambda device: 4 * 16 * 4,
        "reset_peak_memory_stats": lambda device: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    make_arguments = tiny_gae.arguments
    entry = replace(tiny_gae, arguments=lambda configuration, device: make_arguments(configuration, CPU))
    monkeypatch.setattr(command_line, "entries", lambda: {"gae": entry})
    monkeypatch.setattr(targets, "add_call", lambda configuration, device: lambda: None)
    monkeypatch.setattr(suite, "copy_bandwidth", lambda device: COPY_BANDWIDTH)
    monkeypatch.setattr(suite, "empty_launch_time", lambda: 1.0)
    monkeypatch.setattr(suite, "sweep_figures", partial(neighbours.sweep_figures, lengths=(1, 7, 8)))
    monkeypatch.setattr(suite, "EXPONENTS", (6,))
    monkeypatch.setattr(compilation, "LENGTHS", (1, 8))
    return entry


def test_gpu_run(
    pretended_gpu: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # No kernel is compiled here, so the count of kernels fails and has to leave the rest alone.
    assert command_line.main(["gae", "--out", str(tmp_path)]) == 1
    run, figures = load_results(tmp_path / "gae-nvidia-h200.jsonl")
    assert run.copy_bandwidth == COPY_BANDWIDTH
    assert {figure.measure for figure in figures if figure.problem} == {"kernels"}
    assert {figure.measure for figure in figures if figure.value is not None} == {
        *("device", "full call", "amortised", "memory", "2^6 steps", "copy", "empty launch"),
        *("first call, kernel from disk", "first call of another length"),
    }
    by_measure = {figure.measure: figure for figure in figures}
    assert by_measure["device"].bound == 1e9
    assert by_measure["device"].of_copy is not None
    assert by_measure["full call"].bound_from == "1e+09 x torch.add"
    assert sum(figure.measure == "2^6 steps" for figure in figures) == 2 * 3
    output = capsys.readouterr().out
    assert "2 failed" in output
    assert "Peak memory beyond the outputs" in output
    assert command_line.main(["gae", "--quick", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "gae-quick-nvidia-h200.jsonl").exists()


def test_bounds_of_another_gpu_are_left_out(
    pretended_gpu: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    assert command_line.main(["gae", "--quick", "--out", str(tmp_path)]) == 0
    figures = load_results(tmp_path / "gae-quick-nvidia-l4.jsonl")[1]
    assert next(figure for figure in figures if figure.measure == "device").bound is None
    assert "an H200" in capsys.readouterr().out


def test_a_broken_copy_leaves_the_rest(
    pretended_gpu: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: torch.device) -> float:
        raise RuntimeError("no copy today")

    monkeypatch.setattr(suite, "copy_bandwidth", broken)
    assert command_line.main(["gae", "--quick", "--out", str(tmp_path)]) == 1
    assert "Copy: RuntimeError: no copy today" in capsys.readouterr().out
    figures = load_results(tmp_path / "gae-quick-nvidia-h200.jsonl")[1]
    assert next(figure for figure in figures if figure.measure == "device").value is not None
    assert command_line.main(["gae", "--check"]) == 1


@pytest.mark.parametrize(("least", "exit_code"), [(1e-12, 0), (1e12, 1)])
def test_safeguard(
    pretended_gpu: Algorithm,
    least: float,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    guard = Target(Configuration(4, 16), "device", of_copy=least)
    monkeypatch.setattr(command_line, "entries", lambda: {"gae": replace(pretended_gpu, safeguards=(guard,))})
    assert command_line.main(["gae", "--check"]) == exit_code
    assert ("1 short" in capsys.readouterr().out) == bool(exit_code)


def test_interrupt_keeps_what_was_measured(
    tiny_gae: Algorithm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**arguments: Any) -> torch.Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "entries", lambda: {"gae": replace(tiny_gae, function=lambda: interrupted)})
    assert command_line.main(["gae", "--device", "cpu", "--out", str(tmp_path)]) == 130
    assert str(tmp_path) in capsys.readouterr().err
    assert load_results(tmp_path / "gae-cpu.jsonl")[1] == []


# The command line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to check")
def test_check_without_a_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["gae", "--check"]) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1
    assert output.err == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "gae"),
        (["nothing"], "nothing"),
        (["gae", "--nothing"], "--nothing"),
        (["gae", "--device", "tpu"], "tpu"),
        (["gae", "--quick", "--check"], "--check"),
        (["gae", "--device", "cpu", "--out", __file__], "--out"),
        (["report"], "FILE"),
        (["report", "no/such/file.jsonl"], "no/such/file.jsonl"),
        (["report", __file__], "no file of results"),
        pytest.param(
            *(["gae", "--device", "cuda"], "--device cuda"),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command_line.main(arguments)
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert named in output.err


def test_runs_as_a_module_with_nothing_installed() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "benchmarks", "gae", "--help"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--check" in done.stdout


def test_modules_import_without_triton() -> None:
    modules = {file.stem for file in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "__main__", "reference_kernels"}
    imports = "".join(f"import benchmarks.{module}\n" for module in sorted(modules))
    code = f"import sys\nsys.modules['triton'] = None\n{imports}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
