"""Files of results: what is written is read again, also what an earlier version wrote."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.registry import Configuration
from benchmarks.results import (
    FOLDER,
    STAGED,
    Figure,
    Recorded,
    Results,
    Run,
    describe_run,
    finished_units,
    latest,
    load,
    promote,
    slug,
)


def make_run(**changes: Any) -> Run:
    return replace(describe_run("gae", "release", torch.device("cpu")), **changes)


def make_figure(**changes: Any) -> Figure:
    blank = Figure.of("device", Configuration(4096, 128), "us")
    return replace(blank, **({"value": 3.0, "low": 2.9, "high": 3.1} | changes))


def write(path: Path, run: Run, *figures: Figure, finished: str = "") -> None:
    with Results(path, run) as results:
        for figure in figures:
            results.add(figure)
        if finished:
            results.finish(finished)


def test_results_survive_the_file(tmp_path: Path) -> None:
    path, run = tmp_path / "new" / "gae.jsonl", make_run(copy_bandwidth=4e12)
    figures = [make_figure(), make_figure(problem="out of memory", implementation="NumPy", error=1e-7)]
    write(path, run, *figures, finished="a unit")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [list(line) for line in lines] == [["run"], ["figure"], ["figure"], ["finished"]]
    assert set(lines[0]["run"]) == set(asdict(run))
    assert load(path) == [Recorded(run, figures, {"a unit"})]


def test_a_line_is_written_before_the_next_figure(tmp_path: Path) -> None:
    path = tmp_path / "gae.jsonl"
    with Results(path, make_run()) as results:
        results.add(make_figure())
        assert load(path)[0].figures == [make_figure()]


def test_a_later_run_is_appended_behind_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "gae.jsonl"
    write(path, make_run(), make_figure())
    with path.open("a", encoding="utf-8") as file:
        file.write('{"figure": {"mea')
    write(path, make_run(suite="quick"), make_figure(value=4.0))
    assert [one.run.suite for one in load(path)] == ["release", "quick"]
    assert [figure.value for one in load(path) for figure in one.figures] == [3.0, 4.0]


def test_the_latest_figure_of_a_subject_counts_unless_it_failed() -> None:
    first, second = make_run(), make_run(suite="quick")
    other = make_figure(implementation="NumPy")
    recorded = [
        Recorded(first, [make_figure(value=3.0), other]),
        Recorded(second, [make_figure(value=2.0), replace(other, value=None, problem="none")]),
    ]
    assert latest(recorded) == {make_figure(value=2.0): second, other: first}


@pytest.mark.parametrize(
    ("changes", "counts"),
    [({}, True), ({"date": "2020"}, True), ({"suite": "quick"}, True), ({"sources": "other"}, False)],
)
def test_only_the_same_code_on_the_same_machine_has_done_a_unit(
    changes: dict[str, Any], counts: bool, tmp_path: Path
) -> None:
    path = tmp_path / "gae.jsonl"
    write(path, make_run(**changes), finished="a unit")
    assert finished_units(path, make_run()) == ({"a unit"} if counts else set())
    assert not finished_units(tmp_path / "none.jsonl", make_run())


@pytest.mark.parametrize("text", ["", "nothing", '{"figure": {}}', '{"run": {"x": 1}}', "[]", '{"run": 1, "x": 2}'])
def test_what_is_no_file_of_results_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="no file of results"):
        load(path)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.jsonl")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_what_is_committed_is_readable(path: Path) -> None:
    for one in load(path):
        assert one.run.algorithm == path.stem
        assert slug(one.run.device) == path.parent.name
        assert one.figures


def test_promotion_moves_files_and_overwrites_none(tmp_path: Path) -> None:
    path = tmp_path / STAGED / "nvidia-h200" / "gae.jsonl"
    write(path, make_run())
    content = path.read_bytes()
    assert promote("0.1.0", tmp_path) == tmp_path / "0.1.0"
    assert (tmp_path / "0.1.0" / "nvidia-h200" / "gae.jsonl").read_bytes() == content
    assert not path.exists()
    with pytest.raises(ValueError, match="there already"):
        promote("0.1.0", tmp_path)
    with pytest.raises(ValueError, match="nothing is staged"):
        promote("0.2.0", tmp_path)
    with pytest.raises(ValueError, match="expected a version"):
        promote("../0.2.0", tmp_path)


def test_run_names_its_circumstances() -> None:
    run = make_run()
    assert run.torch == torch.__version__
    assert run.python == sys.version.split()[0]
    assert run.date.startswith("20")
    assert len(run.sources or "") == 16


@pytest.mark.parametrize(("words", "name"), [("NVIDIA H200", "nvidia-h200"), ("A  B/c", "a-b-c"), ("CPU", "cpu")])
def test_slug(words: str, name: str) -> None:
    assert slug(words) == name
