"""The command line: `python3 -m benchmarks gae`, `python3 -m benchmarks report FILE`.

Exit codes: 0; 1 where a figure failed or, with --check, misses its floor; 2 for wrong usage; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from benchmarks import report, results
from benchmarks.registry import entries
from benchmarks.suite import Suite, run_suite


class OneLineParser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help shows the options\n")


def main(arguments: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command == "report":
        return print_report(parser, options.file)
    return measure(parser, options)


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="python3 -m benchmarks", description="Measure an algorithm, or show what was measured.", allow_abbrev=False
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="{" + ",".join((*entries(), "report")) + "}"
    )
    for name in entries():
        command = commands.add_parser(name, help=f"measure {name}", allow_abbrev=False)
        command.add_argument(
            "--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: a GPU if there is one"
        )
        command.add_argument("--quick", action="store_true", help="a few figures only")
        command.add_argument("--check", action="store_true", help="fail where a figure misses a floor; needs a GPU")
        command.add_argument(
            "--out", type=Path, metavar="DIR", help="folder of the results; default: benchmarks/results"
        )
    shown = commands.add_parser("report", help="show results as a Markdown table", allow_abbrev=False)
    shown.add_argument("file", type=Path, metavar="FILE", help="a .jsonl of results")
    return parser


def print_report(parser: OneLineParser, file: Path) -> int:
    try:
        run, figures = results.load(file)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(report.markdown(run, figures), end="")
    return 0


def measure(parser: OneLineParser, options: argparse.Namespace) -> int:
    if options.quick and options.check:
        parser.error("--quick and --check exclude each other")
    suite: Suite = "check" if options.check else "quick" if options.quick else "full"
    device = find_device(parser, options.device)
    if suite == "check" and device.type != "cuda":
        print("No speed check: it compares with a GPU's own copy bandwidth, and there is no CUDA device here.")
        return 0
    folder: Path | None = options.out
    if folder is None and suite != "check":
        folder = results.FOLDER
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out {folder}: {error.strerror}")
    try:
        measured = run_suite(entries()[options.command], suite, device, folder)
    except KeyboardInterrupt:
        print("\nInterrupted." + (f" What was measured is in {folder}." if folder else ""), file=sys.stderr)
        return 130
    print(report.summary(measured.figures) + (f"; {measured.path}" if measured.path else ""))
    failed = any(figure.problem for figure in measured.figures)
    too_slow = suite == "check" and any(figure.is_short for figure in measured.figures)
    return int(failed or too_slow)


def find_device(parser: OneLineParser, name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)
