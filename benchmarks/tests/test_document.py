"""What is generated from results: the document, the README's table and the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import command_line, document
from benchmarks.collection import Collection, collections, newest_version
from benchmarks.registry import Configuration, entries, plain
from benchmarks.results import ROOT, STAGED, Figure, Results, describe_run
from benchmarks.suites import MAIN


def figures(algorithm: str) -> Iterator[Figure]:
    """Ours takes 2 µs and more; the compiled baseline twice that, but half of it at the largest shape."""
    for rows, steps in MAIN:
        configuration = plain(entries()[algorithm], rows, steps)
        ours = 2.0 + rows * steps / 2e5
        theirs = ours / 2 if (rows, steps) == (4096, 2048) else 2 * ours
        times = {"rl-triton": (ours, ours + 15), "torch.compile": (theirs, theirs + 90)}
        for who, (device, full_call) in times.items():
            for measure, value in (("device", device), ("full call", full_call)):
                blank = Figure.of(measure, configuration, "us", who)
                figure = replace(blank, value=value, low=value, high=1.1 * value, error=2e-7)
                yield replace(figure, bytes=rows * steps, of_copy=0.5, add=1.5) if who == "rl-triton" else figure
        numpy = Figure.of("wall", configuration, "ms", "NumPy")
        yield replace(numpy, value=40.0, low=39.0, high=44.0, error=3e-7)


def write(folder: Path, algorithm: str, *more: Figure, device: str = "NVIDIA H200") -> None:
    run = replace(describe_run(algorithm, "release", torch.device("cpu")), device=device, copy_bandwidth=4.2e12)
    with Results(folder / f"{algorithm}.jsonl", run) as results:
        for figure in (*figures(algorithm), *more):
            results.add(figure)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for algorithm in ("gae", "retrace"):
        write(folder / STAGED / "nvidia-h200", algorithm)
    return folder


@pytest.fixture
def collection(results: Path) -> Collection:
    (found,) = collections(STAGED, results)
    return found


def test_headline(collection: Collection) -> None:
    lines = document.headline(collection)
    assert lines[0] == (
        "| algorithm | N x T | device | full call | torch.compile, device | torch.compile, full call | NumPy, wall "
        "| of copy bandwidth |"
    )
    assert lines[2] == "| gae | 4096 x 128 | 4.62 µs | 19.6 µs | 9.24 µs | 99.2 µs | 40.0 ms | 50% |"
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| gae", "| gae", "| retrace", "| retrace"]


def test_where_another_is_faster_is_said(collection: Collection) -> None:
    lines = document.losses(collection)
    assert lines[0] == f"In 2 of {2 * 3 * len(MAIN)} comparisons."
    assert (
        "| gae | device | 4096 x 2048 | row-major | float32, bool flags | torch.compile | 22.0 µs | 43.9 µs |" in lines
    )


def test_speedups_compare_the_same_call(collection: Collection) -> None:
    by_kind = {
        (one.other.implementation, one.other.measure, one.mine.measure)
        for one in collection.speedups()
        if one.algorithm == "gae"
    }
    assert by_kind == {
        ("torch.compile", "device", "device"),
        ("torch.compile", "full call", "full call"),
        ("NumPy", "wall", "full call"),
    }


def test_exceptions_are_listed(results: Path) -> None:
    late = replace(Figure.of("device", Configuration(7, 9), "us"), value=4.0, bound=2.0)
    failed = replace(Figure.of("device", Configuration(7, 10), "us", "eager loop"), problem="WrongResultError: no")
    write(results / STAGED / "nvidia-h200", "gae", late, failed)
    lines = document.exceptions(collections(STAGED, results)[0])
    assert (
        "| gae | rl-triton | device | 7 x 9 | row-major | float32, bool flags | 4.00 µs | 2.00 µs | short by 100% |"
        in lines
    )
    assert any("eager loop" in line and "WrongResultError: no" in line for line in lines)
    assert any(line.startswith("- gae: Suspicious: rl-triton, device") for line in lines)


def test_nothing_to_list(results: Path) -> None:
    (found,) = collections(STAGED, results)
    assert [line for line in document.exceptions(found) if line.startswith("|")] == []


def test_the_errors_of_all(collection: Collection) -> None:
    assert "| retrace | NumPy | float32 | 3.0e-07 |" in document.accuracy(collection)


def test_report_writes_everything(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write(results / STAGED / "cpu", "gae", device="CPU")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n", encoding="utf-8")
    arguments = ["report", "--results", str(results), "--to", str(tmp_path)]
    assert command_line.main(arguments) == 0
    text = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    names = ["speedup", "bandwidth", "error", "gae-latency", "retrace-latency"]
    pictures = [f"nvidia-h200-{name}.svg" for name in names]
    assert sorted(path.name for path in (tmp_path / "docs" / "benchmarks").iterdir()) == sorted(pictures)
    assert all(f"(benchmarks/{picture})" in text for picture in pictures)
    assert text.index("## NVIDIA H200, unreleased") < text.index("## CPU, unreleased")
    table = readme.read_text(encoding="utf-8")
    assert table.startswith("before\n")
    assert table.endswith("after\n")
    assert "old" not in table
    assert "| gae | 4096 x 128 |" in table

    # The same results give the same files.
    files = [readme, *(tmp_path / "docs").rglob("*.*")]
    before = {file: file.read_bytes() for file in files if file.is_file()}
    assert command_line.main(arguments) == 0
    assert {file: file.read_bytes() for file in before} == before
    assert len(before) == 2 + len(pictures)


def test_a_readme_without_markers_is_left_alone(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("nothing", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        command_line.main(["report", "--results", str(results), "--to", str(tmp_path)])
    assert stop.value.code == 2
    assert "expected <!-- benchmarks: begin -->" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("names", "newest"),
    [(["0.9.0", "0.10.0"], "0.10.0"), (["0.9.0", STAGED], STAGED), (["1.0.0", "1.0.0rc1", "0.2.0"], "1.0.0rc1")],
)
def test_newest_version(names: list[str], newest: str, tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / name / "cpu", "gae", device="CPU")
    assert newest_version(tmp_path) == newest


def test_no_results_say_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results"):
        newest_version(tmp_path)
    with pytest.raises(ValueError, match="no results"):
        collections("0.1.0", tmp_path)


def test_what_is_committed_was_generated() -> None:
    """`python3 -m benchmarks report` writes both files anew."""
    version = newest_version()
    found = collections(version)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert document.with_table(readme, document.readme_table(found[0])) == readme
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    pictures: dict[str, Any] = {collection.label: [] for collection in found}
    # Pictures are left out: without matplotlib it is not known which there are.
    rendered = document.render(version, found, pictures)
    assert set(rendered.splitlines()) <= set(written.splitlines())
