"""Figures as a table, for the terminal while they come in and as Markdown from a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.registry import TIMES
from benchmarks.results import OURS, Figure, Recorded, Run

COLUMNS = {
    "what": 13,
    "measure": 10,
    "N x T": 12,
    "layout": 10,
    "inputs": 36,
    "time": 9,
    "must reach": 25,
    "verdict": 13,
    "torch.add": 10,
    "MB": 7,
    "GB/s": 6,
    "of copy": 7,
}
LEFT = ("what", "algorithm", "learner", "measure", "N x T", "layout", "inputs", "dtype", "must reach", "verdict")
UNITS = {"us": "µs", "ps": "ps a step"}


def number(value: float | None, unit: str = "") -> str:
    """About three significant digits, and no exponent."""
    if value is None:
        return "-"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 4
    return f"{value:.{digits}f} {UNITS.get(unit, unit)}".rstrip()


def verdict(figure: Figure) -> str:
    if figure.problem:
        return "failed"
    if figure.excess is None:
        return "-"
    return f"short by {figure.excess:.0%}" if figure.is_short else "met"


def cells(figure: Figure) -> list[str]:
    """A figure's entries under COLUMNS."""
    bound = number(figure.bound, figure.unit)
    return [
        figure.implementation,
        figure.measure,
        f"{figure.rows} x {figure.steps}",
        figure.layout,
        figure.inputs,
        number(figure.value, figure.unit),
        f"{bound} = {figure.bound_from}" if figure.bound_from else bound,
        verdict(figure),
        number(figure.add),
        "-" if figure.bytes is None else number(figure.bytes / 1e6),
        "-" if figure.bandwidth is None else number(figure.bandwidth / 1e9),
        "-" if figure.of_copy is None else f"{figure.of_copy:.0%}",
    ]


def terminal_row(entries: Sequence[str]) -> str:
    aligned = [
        entry.ljust(width) if name in LEFT else entry.rjust(width)
        for entry, (name, width) in zip(entries, COLUMNS.items(), strict=True)
    ]
    return " ".join(aligned).rstrip()


def terminal_line(figure: Figure) -> str:
    row = terminal_row(cells(figure))
    return f"{row}\n    {figure.problem}" if figure.problem else row


def machine_lines(run: Run) -> list[str]:
    """Where a run is, in words."""
    driver = f", driver {run.driver}" if run.driver else f", {run.threads} threads"
    lines = [f"{run.device}{driver}, torch {run.torch}, Triton {run.triton or 'none'}, Python {run.python}"]
    if run.copy_bandwidth is not None and run.empty_launch is not None:
        copy = f"Copy bandwidth {run.copy_bandwidth / 1e12:.2f} TB/s (read and write)"
        lines.append(f"{copy}; an empty launch takes {run.empty_launch:.2f} µs on the device")
    return lines


def run_line(run: Run) -> str:
    """What a run measures."""
    commit = (run.commit[:12] if run.commit else "an unknown commit") + (" with changes" if run.dirty else "")
    return f"{run.algorithm} at {commit}, {run.date}"


def sentences(figures: Sequence[Figure]) -> list[str]:
    """Everything that has no row of the table, summed up."""
    lines = []
    for figure in figures:
        title = figure.measure[:1].upper() + figure.measure[1:]
        if figure.implementation != OURS:
            title += f" of {figure.implementation}, {figure.rows} x {figure.steps}"
        if figure.measure.startswith("first call"):
            lines.append(f"{title}: {figure.problem or number(figure.value, figure.unit)}")
        elif figure.measure in ("copy", "empty launch") and figure.problem:
            lines.append(f"{title}: {figure.problem}")
        elif figure.measure == "kernels":
            count = "" if figure.value is None else f"{figure.value:.0f} kernels, at most {figure.bound:.0f}: "
            lines.append(f"200 lengths from 1 to 4096, {figure.layout}: {count}{figure.problem or verdict(figure)}")
        elif figure.unit == "%" and figure.measure != "memory":
            said = figure.problem or f"{number(figure.value)} %, at most {number(figure.bound)}: {verdict(figure)}"
            lines.append(f"{title}, {figure.rows} x {figure.steps}: {said}")
    memory = [figure for figure in figures if figure.measure == "memory"]
    if memory:
        lines += _memory_sentences(memory)
    sweeps = [figure for figure in figures if figure.unit == "ps"]
    for layout, measure in dict.fromkeys((figure.layout, figure.measure) for figure in sweeps):
        members = [figure for figure in sweeps if (figure.layout, figure.measure) == (layout, measure)]
        lines += _sweep_sentences(f"Lengths, {layout}, {measure}", members)
    return lines


def _memory_sentences(memory: Sequence[Figure]) -> list[str]:
    values = [figure.value for figure in memory if figure.value is not None]
    lines = []
    if values:
        lines.append(f"Peak memory beyond the outputs: at most {max(values):.2f} % over {len(values)} shapes")
    return lines + _exceptions(memory)


def _sweep_sentences(title: str, sweep: Sequence[Figure]) -> list[str]:
    values = [figure.value for figure in sweep if figure.value is not None]
    lines = []
    if values:
        count = sum(figure.is_short for figure in sweep)
        costs = f"{number(min(values))} to {number(max(values), 'ps')}"
        lines.append(f"{title}: {costs}, {count} of {len(values)} over 1.3 x a neighbour")
    return lines + _exceptions(sweep)


def _exceptions(figures: Sequence[Figure]) -> list[str]:
    """A line for every figure that failed or misses its bound."""
    return [
        f"    {figure.rows} x {figure.steps}, {figure.layout}, {figure.inputs}: "
        + (figure.problem or f"{number(figure.value, figure.unit)}, {figure.excess:.0%} over {number(figure.bound)}")
        for figure in figures
        if figure.problem or figure.is_short
    ]


def summary(figures: Sequence[Figure]) -> str:
    short = sum(figure.is_short for figure in figures)
    failed = sum(bool(figure.problem) for figure in figures)
    met = sum(figure.excess is not None for figure in figures) - short
    return f"{len(figures)} figures: {met} bounds met, {short} short, {failed} failed"


def markdown(recorded: Sequence[Recorded]) -> str:
    """A file as tables, one per run."""
    parts = []
    for one in recorded:
        lines = table(COLUMNS, [cells(figure) for figure in one.figures if figure.measure in TIMES])
        circumstances = (*machine_lines(one.run), run_line(one.run), *sentences(one.figures))
        parts.append([*lines, "", *(f"- {line.strip()}" for line in circumstances)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def table(columns: Iterable[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table: words left, numbers right."""
    names = list(columns)
    rule = "|" + "|".join("---" if name in LEFT else "---:" for name in names) + "|"
    return [_markdown_row(names), rule, *map(_markdown_row, rows)]


def _markdown_row(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"
