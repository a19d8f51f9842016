"""The command line: what a run measures, writes, skips and returns. No timing is judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import command_line, progress, suite
from benchmarks.registry import Configuration, Target, entries
from benchmarks.results import load
from benchmarks.tests.conftest import COPY_BANDWIDTH, Entries

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, out: Path | None = None) -> int:
    return command_line.main([*arguments, *(["--out", str(out)] if out else [])])


# Runs


def test_cpu_run(tiny_gae: Entries, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("quick", "--device", "cpu", out=tmp_path) == 0
    path = tmp_path / "cpu" / "gae.jsonl"
    assert capsys.readouterr().out.endswith(f"2 figures: 2 bounds met, 0 short, 0 failed; {path}\n")
    (recorded,) = load(path)
    assert recorded.run.device == "CPU"
    figure = recorded.figures[0]
    assert figure.value is not None
    assert 0 < figure.value < 1e6
    assert figure.low is not None
    assert figure.add is not None
    assert figure.error is not None
    assert 0 <= figure.error < 1e-6
    assert figure.bytes == 4 * 16 * 13 + 4 * 4
    assert run("show", str(path)) == 0
    assert "| wall | 4 x 16 |" in capsys.readouterr().out


def test_baselines_on_the_cpu(tiny_gae: Entries, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    assert run("quick", "--device", "cpu", "--baselines", "loop,numpy,numpy_via_gpu", out=tmp_path) == 0
    (recorded,) = load(tmp_path / "cpu" / "gae.jsonl")
    first = [figure for figure in recorded.figures if figure.steps == 16]
    assert [figure.implementation for figure in first] == ["rl-triton", "eager loop", "NumPy"]
    assert all(figure.value is not None and figure.error is not None for figure in first)


def test_wrong_results_show_no_figure(tiny_gae: Entries, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_gae.change(function=lambda: lambda **arguments: torch.zeros(4, 16))
    assert run("quick", "--device", "cpu", "--shapes", "4x16", out=tmp_path) == 1
    ((figure,),) = (one.figures for one in load(tmp_path / "cpu" / "gae.jsonl"))
    assert figure.value is None
    assert "WrongResultError: wrong result: relative error" in capsys.readouterr().out


def test_a_wrong_baseline_shows_no_figure(tiny_gae: Entries, tmp_path: Path) -> None:
    right = tiny_gae.only.whole
    tiny_gae.change(whole=lambda arguments, scan: 1.001 * right(arguments, scan))
    assert run("quick", "--device", "cpu", "--shapes", "4x16", "--baselines", "loop", out=tmp_path) == 1
    (recorded,) = load(tmp_path / "cpu" / "gae.jsonl")
    assert [(figure.implementation, figure.value is None) for figure in recorded.figures] == [
        ("rl-triton", False),
        ("eager loop", True),
    ]


def test_gpu_run(pretended_gpu: Entries, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # No kernel is compiled here, so the count of kernels fails and has to leave the rest alone.
    assert run("release", "--baselines", "none", out=tmp_path) == 1
    (recorded,) = load(tmp_path / "nvidia-h200" / "gae.jsonl")
    assert recorded.run.copy_bandwidth == COPY_BANDWIDTH
    assert {figure.measure for figure in recorded.figures if figure.problem} == {"kernels"}
    assert {figure.measure for figure in recorded.figures if figure.value is not None} == {
        *("device", "full call", "amortised", "memory", "2^6 steps", "copy", "empty launch"),
        *("first call, kernel from disk", "first call of another length"),
    }
    by_measure = {figure.measure: figure for figure in recorded.figures}
    assert by_measure["device"].bound == 1e9
    assert by_measure["device"].of_copy is not None
    assert by_measure["full call"].bound_from == "1e+09 x torch.add"
    assert sum(figure.measure == "2^6 steps" for figure in recorded.figures) == 2 * 3
    output = capsys.readouterr().out
    assert "2 failed" in output
    assert "Peak memory beyond the outputs" in output
    # What failed is all that is left to do.
    assert run("release", "--baselines", "none", out=tmp_path) == 1
    assert {figure.measure for figure in load(tmp_path / "nvidia-h200" / "gae.jsonl")[1].figures} == {
        *("copy", "empty launch", "kernels")
    }


def test_a_label_names_the_folder(pretended_gpu: Entries, tmp_path: Path) -> None:
    assert run("quick", "--gpu", "My H200", out=tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["my-h200"]


def test_bounds_of_another_gpu_are_left_out(
    pretended_gpu: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    assert run("quick", out=tmp_path) == 0
    (recorded,) = load(tmp_path / "nvidia-l4" / "gae.jsonl")
    assert next(figure for figure in recorded.figures if figure.measure == "device").bound is None


def test_a_broken_copy_leaves_the_rest(
    pretended_gpu: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: torch.device) -> float:
        raise RuntimeError("no copy today")

    monkeypatch.setattr(suite, "copy_bandwidth", broken)
    assert run("quick", out=tmp_path) == 1
    assert "Copy: RuntimeError: no copy today" in capsys.readouterr().out
    (recorded,) = load(tmp_path / "nvidia-h200" / "gae.jsonl")
    assert next(figure for figure in recorded.figures if figure.measure == "device").value is not None
    assert run("safeguard", "--baselines", "none") == 1


@pytest.mark.parametrize(("least", "exit_code"), [(1e-12, 0), (1e12, 1)])
def test_safeguard(pretended_gpu: Entries, least: float, exit_code: int, capsys: pytest.CaptureFixture[str]) -> None:
    pretended_gpu.change(safeguards=(Target(Configuration(4, 16), "device", of_copy=least),))
    assert run("safeguard", "--baselines", "none") == exit_code
    assert ("1 short" in capsys.readouterr().out) == bool(exit_code)


@pytest.mark.parametrize(("seconds", "exit_code"), [(100.0, 0), (1e-9, 1)])
def test_safeguard_against_the_compiled_baseline(
    pretended_gpu: Entries,
    seconds: float,
    exit_code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(option: str, algorithm: Any, configuration: Any, device: Any, measures: tuple[str, ...]) -> Any:
        timings = dict.fromkeys(measures, (seconds * 1000000.0,) * 3)
        return {"error": 0.0, "first_call": 1.0, "from_cache": False, "timings": timings}

    monkeypatch.setattr("benchmarks.measuring.ask", answer)
    assert run("safeguard") == exit_code
    assert ("Device, of torch.compile, 4 x 16" in capsys.readouterr().out) is True


# Going on


def test_a_second_start_goes_on(
    tiny_gae: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    function, calls = tiny_gae.only.function(), 0

    def interrupted(**arguments: Any) -> torch.Tensor:
        if arguments["rewards"].shape[1] == 32:
            raise KeyboardInterrupt
        result: torch.Tensor = function(**arguments)
        return result

    tiny_gae.change(function=lambda: interrupted)
    assert run("quick", "--device", "cpu", out=tmp_path) == 130
    assert "1 units left" in capsys.readouterr().err
    path = tmp_path / "cpu" / "gae.jsonl"
    assert [figure.steps for figure in load(path)[0].figures] == [16]

    def counted(**arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += arguments["rewards"].shape[1] == 16
        result: torch.Tensor = function(**arguments)
        return result

    tiny_gae.change(function=lambda: counted)
    assert run("quick", "--device", "cpu", out=tmp_path) == 0
    assert [figure.steps for figure in load(path)[1].figures] == [32]
    assert calls == 0
    assert run("quick", "--device", "cpu", out=tmp_path) == 0
    assert "2 units were done before" in capsys.readouterr().out
    assert len(load(path)) == 2
    assert run("quick", "--device", "cpu", "--fresh", out=tmp_path) == 0
    assert calls > 0


def test_the_time_limit_stops_between_units(
    tiny_gae: Entries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "SECONDS_TO_COMPILE", 0.0)
    ticks = iter(range(0, 10000, 10))
    monkeypatch.setattr(suite, "Progress", lambda total: progress.Progress(total, lambda: float(next(ticks))))
    assert run("quick", "--device", "cpu", "--time-limit", "55", out=tmp_path) == 3
    assert "The time limit left 1 units" in capsys.readouterr().out
    assert [figure.steps for figure in load(tmp_path / "cpu" / "gae.jsonl")[0].figures] == [16]


def test_no_update_writes_nothing(tiny_gae: Entries, tmp_path: Path) -> None:
    assert run("quick", "--device", "cpu", "--no-update", out=tmp_path) == 0
    assert not list(tmp_path.iterdir())


def test_progress_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with progress.Progress(4, lambda: now) as shown:
        assert shown.time_left() is None
        shown.start("first")
        now = 300.0
        shown.finish()
        assert shown.time_left() == 900.0
        assert shown.longest_unit == 300.0
        shown.start("second")
    assert capsys.readouterr().out == "[1 of 4 done, about 15 min left] second\n"


# Usage


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to check")
def test_safeguard_without_a_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("safeguard") == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1
    assert output.err == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "quick"),
        (["nothing"], "nothing"),
        (["quick", "--nothing"], "--nothing"),
        (["quick", "--device", "tpu"], "tpu"),
        (["quick", "--algos", "gea"], "--algos"),
        (["quick", "--shapes", "4096"], "4096"),
        (["quick", "--device", "cpu", "--shapes", "1x1"], "--shapes"),
        (["quick", "--device", "cpu", "--baselines", "jax"], "--baselines"),
        (["quick", "--time-limit", "0"], "--time-limit"),
        (["quick", "--device", "cpu", "--out", __file__], "--out"),
        (["show"], "FILE"),
        (["show", "no/such/file.jsonl"], "no/such/file.jsonl"),
        (["show", __file__], "no file of results"),
        (["promote", "one"], "VERSION"),
        pytest.param(
            *(["quick", "--device", "cuda"], "--device cuda"),
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


def test_patterns_name_algorithms() -> None:
    named = suite.algorithms_named(["gae*", "returns"], entries())
    assert [algorithm.name for algorithm in named] == [
        *(
            "gae",
            "gae-targets",
            "gae-targets_lambda",
            "gae-mask",
            "gae-starts_at",
            "gae-packed",
            "gae-normalize",
            "returns",
        )
    ]


def test_runs_as_a_module_with_nothing_installed() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "benchmarks", "quick", "--help"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--time-limit" in done.stdout


def test_modules_import_without_what_is_optional() -> None:
    modules = {file.stem for file in (ROOT / "benchmarks").glob("*.py")} - {"__init__", "__main__", "reference_kernels"}
    imports = "".join(f"import benchmarks.{module}\n" for module in sorted(modules))
    optional = ("triton", "numpy", "rich", "matplotlib", "torchrl")
    code = f"import sys\nsys.modules.update(dict.fromkeys({optional}))\n{imports}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
