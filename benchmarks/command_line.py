"""The command line: `python3 -m benchmarks quick --algos gae`, `python3 -m benchmarks report`.

Exit codes: 0; 1 where a figure failed or, in the safeguard, misses its floor; 2 for wrong usage; 3 where the time limit
left something to do, which the same command goes on with; 130 after Ctrl-C, likewise.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from benchmarks import document, plots, report, results
from benchmarks.baselines import BY_OPTION
from benchmarks.collection import collections, newest_version
from benchmarks.end_to_end import run
from benchmarks.registry import entries
from benchmarks.suite import Outcome, Plan, algorithms_named, run_plan
from benchmarks.suites import units_of

SUITES = {
    "release": "every shape and every baseline, for as long as it takes; see --time-limit",
    "quick": "a few shapes",
    "safeguard": "one shape or a few, with floors relative to torch.add, torch.compile and a copy of the same run",
}


class OneLineParser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help shows the options\n")


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "show":
            print(report.markdown(results.load(options.file)), end="")
            return 0
        if options.command == "promote":
            print(f"Now in {results.promote(options.version)}")
            return 0
        if options.command == "end_to_end":
            return measure_end_to_end(options)
        if options.command == "report":
            return write_report(options)
        return measure(options)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python3 -m benchmarks",
        description="Measure the algorithms, or show what was measured.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="{" + ",".join((*SUITES, "end_to_end", "report", "show", "promote")) + "}",
    )
    for name, meaning in SUITES.items():
        add_suite_options(commands.add_parser(name, help=meaning, description=meaning, allow_abbrev=False))
    whole = commands.add_parser(
        "end_to_end", help="the share of credit assignment in whole learning steps", allow_abbrev=False
    )
    add_common_options(whole)
    reported = commands.add_parser(
        "report", help="write docs/benchmarks.md, its pictures and the README's table from results", allow_abbrev=False
    )
    reported.add_argument("--version", metavar="VERSION", help="whose results; default: what is staged, else the last")
    reported.add_argument("--gpu", metavar="LABEL", help="whose table stands in the README; default: the first")
    reported.add_argument("--results", type=Path, default=results.FOLDER, metavar="DIR", help="where results are")
    reported.add_argument("--to", type=Path, default=results.ROOT, metavar="DIR", help="the folder with the README")
    shown = commands.add_parser("show", help="show a file of results as Markdown tables", allow_abbrev=False)
    shown.add_argument("file", type=Path, metavar="FILE", help="a .jsonl of results")
    promoted = commands.add_parser("promote", help="move staged results to those of a version", allow_abbrev=False)
    promoted.add_argument("version", metavar="VERSION", help="such as 0.1.0")
    return parser


def add_suite_options(command: argparse.ArgumentParser) -> None:
    add_common_options(command)
    command.add_argument(
        "--algos", type=comma_separated, default=["*"], metavar="LIST", help="names or patterns: gae,vtrace or 'gae*'"
    )
    command.add_argument("--shapes", type=sizes, default=[], metavar="LIST", help="only these: 4096x128,16384x512")
    command.add_argument(
        "--compile-jobs", type=int, metavar="N", help="compile so many baselines at a time; default: half the cores"
    )


def add_common_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--baselines", type=comma_separated, metavar="LIST", help=f"some of {','.join(BY_OPTION)}; or all, or none"
    )
    command.add_argument(
        "--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one"
    )
    command.add_argument("--gpu", metavar="LABEL", help="the folder of the results; default: the device's name")
    command.add_argument("--out", type=Path, metavar="DIR", help="where that folder is; default: what is staged")
    command.add_argument("--no-update", action="store_true", help="print only, and write nothing")
    command.add_argument("--fresh", action="store_true", help="measure again what is there already")
    command.add_argument("--time-limit", type=positive, metavar="SECONDS", help="stop in time before it is over")


def write_report(options: argparse.Namespace) -> int:
    """Render everything that is made of results; pictures where matplotlib is installed."""
    version = options.version or newest_version(options.results)
    found = collections(version, options.results)
    labels = {collection.label: collection for collection in found}
    shown = labels.get(results.slug(options.gpu)) if options.gpu else found[0]
    if shown is None:
        raise ValueError(f"--gpu: expected one of {', '.join(labels)}, got {options.gpu}")
    docs, readme = options.to / "docs", options.to / "README.md"
    text = document.with_table(readme.read_text(encoding="utf-8"), document.readme_table(shown))
    try:
        pictures = {collection.label: plots.draw_all(collection, docs / "benchmarks") for collection in found}
    except ModuleNotFoundError as error:
        print(f"No pictures: {error}", file=sys.stderr)
        return 1
    docs.mkdir(exist_ok=True)
    (docs / "benchmarks.md").write_text(document.render(version, found, pictures), encoding="utf-8")
    readme.write_text(text, encoding="utf-8")
    print(f"Wrote {docs / 'benchmarks.md'}, {sum(map(len, pictures.values()))} pictures and the table of {readme}")
    return 0


def comma_separated(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def sizes(text: str) -> list[str]:
    for word in comma_separated(text):
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", word):
            raise argparse.ArgumentTypeError(f"expected N x T such as 4096x128, got {word!r}")
    return comma_separated(text)


def positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return value


def measure(options: argparse.Namespace) -> int:
    device = find_device(options.device)
    if options.command == "safeguard" and device.type != "cuda":
        print("No safeguard: it compares with a GPU's own speed, and there is no CUDA device here.")
        return 0
    algorithms = algorithms_named(options.algos, entries())
    baselines = baselines_named(options.baselines)
    units = {
        algorithm.name: units_of(algorithm, options.command, device, baselines, options.shapes)
        for algorithm in algorithms
    }
    if not any(units.values()):
        raise ValueError("--shapes: none of them is in this suite")
    folder = None if options.command == "safeguard" and not options.out else folder_for(options, device)
    jobs = options.compile_jobs or (max(1, (os.cpu_count() or 1) // 2) if device.type == "cuda" else 1)
    plan = Plan(options.command, device, units, folder, not options.fresh, options.time_limit, jobs)
    outcome = Outcome()
    try:
        run_plan(plan, outcome)
    except KeyboardInterrupt:
        print(f"\nInterrupted with {outcome.left} units left; the same command goes on.", file=sys.stderr)
        return 130
    return conclude(plan, outcome)


def folder_for(options: argparse.Namespace, device: torch.device) -> Path | None:
    """Where results go, which is there then; None where nothing is to be written."""
    if options.no_update:
        return None
    name = options.gpu or (torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU")
    folder: Path = (options.out or results.FOLDER / results.STAGED) / results.slug(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: {error.strerror}") from error
    return folder


def measure_end_to_end(options: argparse.Namespace) -> int:
    device = find_device(options.device)
    who = run.implementations_named(baselines_named(options.baselines))
    folder = folder_for(options, device)
    try:
        figures, left = run.run_scenarios(
            device, folder, resume=not options.fresh, time_limit=options.time_limit, implementations=who
        )
    except KeyboardInterrupt:
        print("\nInterrupted; the same command goes on.", file=sys.stderr)
        return 130
    print(report.summary(figures) + (f"; {folder}" if folder else ""))
    if left:
        print(f"The time limit left {left} units; the same command goes on.")
        return 3
    return int(any(figure.problem for figure in figures))


def conclude(plan: Plan, outcome: Outcome) -> int:
    """Sum up; the exit code."""
    print(report.summary(outcome.figures) + "".join(f"; {path}" for path in outcome.paths))
    if outcome.skipped:
        print(f"{outcome.skipped} units were done before; --fresh measures them again.")
    failed = any(figure.problem for figure in outcome.figures)
    too_slow = plan.suite == "safeguard" and any(figure.is_short for figure in outcome.figures)
    if outcome.left:
        print(f"The time limit left {outcome.left} units; the same command goes on.")
        return 3
    return int(failed or too_slow)


def baselines_named(names: list[str] | None) -> list[str] | None:
    if names is None or names == ["none"]:
        return None if names is None else []
    if names == ["all"]:
        return list(BY_OPTION)
    for name in names:
        if name not in BY_OPTION:
            raise ValueError(f"--baselines: expected some of {', '.join(BY_OPTION)}, or all, or none, got {name}")
    return names


def find_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no CUDA device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)
