"""Results as pictures: SVG files, the same for the same results.

It needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.collection import Collection, microseconds
from benchmarks.document import GPU_COLUMNS
from benchmarks.registry import entries, plain
from benchmarks.results import Figure
from benchmarks.suites import MAIN, is_variant

ROWS, STEPS = 4096, 128
SERIES = tuple((title, who, measure) for title, who, measure in GPU_COLUMNS if measure != "amortised")
# Colours that are told apart in every kind of sight.
COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#999999", "#000000")

Draw = Callable[[Collection, Any], bool]


def draw_all(collection: Collection, folder: Path) -> list[tuple[str, str]]:
    """Write every picture that there are results for; titles and file names.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    matplotlib.use("Agg")
    # Names inside the files and text as text: the same results give the same bytes.
    matplotlib.rcParams.update({"svg.hashsalt": "rl-triton", "svg.fonttype": "none", "font.size": 9})
    drawn = []
    for name, title, width, height, draw in _pictures(collection):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        if draw(collection, canvas):
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / f"{collection.label}-{name}.svg"
            canvas.savefig(file, metadata={"Date": None, "Creator": None})
            drawn.append((title, file.name))
    return drawn


def _pictures(collection: Collection) -> Iterator[tuple[str, str, float, float, Draw]]:
    """Name, title, size and what draws it."""
    if collection.is_of_cpu:
        return
    yield "speedup", "How many times as fast as others", 11, 5, speedup_map
    yield "bandwidth", "Fraction of copy bandwidth", 7, 4.5, bandwidth
    yield "error", "Error against float64", 7, 4.5, errors
    for algorithm in _base_algorithms(collection):
        draw = partial(latency, algorithm=algorithm)
        yield f"{algorithm}-latency", f"{algorithm}: time against steps and environments", 11, 4.5, draw


def latency(collection: Collection, canvas: Any, algorithm: str) -> bool:
    """Time against T at one N, and against N at one T, with the spread as a band."""
    panels = canvas.subplots(1, 2, sharey=True)
    drawn = False
    for panel, axis, fixed in ((panels[0], "steps", "rows"), (panels[1], "rows", "steps")):
        at = ROWS if fixed == "rows" else STEPS
        for colour, (title, who, measure) in zip(COLOURS, SERIES, strict=True):
            figures = [
                figure
                for figure in collection.of(algorithm, measure, who)
                if getattr(figure, fixed) == at and _is_plain(algorithm, figure)
            ]
            figures.sort(key=lambda figure: getattr(figure, axis))
            if len(figures) > 0:
                _line(panel, [getattr(figure, axis) for figure in figures], figures, colour, title)
                drawn = drawn or len(figures) > 1
        panel.set(xscale="log", yscale="log", xlabel=f"{'T, steps' if axis == 'steps' else 'N, environments'}")
        panel.set_title(f"{'N' if fixed == 'rows' else 'T'} = {at}")
        panel.grid(visible=True, which="both", linewidth=0.3)
    panels[0].set_ylabel("µs")
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    canvas.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    return drawn


def _line(panel: Any, places: Sequence[int], figures: Sequence[Figure], colour: str, title: str) -> None:
    panel.plot(
        places, [microseconds(figure) for figure in figures], marker="o", markersize=3, color=colour, label=title
    )
    scales = [microseconds(figure) / figure.value for figure in figures if figure.value]
    low = [(figure.low or figure.value or 0.0) * scale for figure, scale in zip(figures, scales, strict=True)]
    high = [(figure.high or figure.value or 0.0) * scale for figure, scale in zip(figures, scales, strict=True)]
    panel.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)


def bandwidth(collection: Collection, canvas: Any) -> bool:
    """Device times as fractions of what copying their bytes takes."""
    panel = canvas.subplots()
    names = _base_algorithms(collection)
    drawn = False
    for colour, name in zip(COLOURS, names, strict=False):
        points = sorted(
            (figure.bytes, figure.of_copy)
            for figure in collection.of(name, "device")
            if figure.bytes and figure.of_copy
        )
        if points:
            panel.scatter(*zip(*points, strict=True), s=12, color=colour, label=name)
            drawn = True
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set(xscale="log", xlabel="bytes read and written", ylabel="fraction of copy bandwidth", ylim=(0, None))
    panel.grid(visible=True, linewidth=0.3)
    if drawn:
        panel.legend(frameon=False)
    return drawn


def speedup_map(collection: Collection, canvas: Any) -> bool:
    """A baseline's time over ours: blue where we are faster, red where we lose, grey where nothing was measured."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    sizes = [f"{rows} x {steps}" for rows, steps in sorted(MAIN, key=lambda size: (math.prod(size), size))]
    pairs = (("torch.compile", "device"), ("torch.compile", "full call"), ("eager loop", "full call"))
    factors: dict[tuple[str, str, str, str], float] = {}
    for one in collection.speedups():
        if not is_variant(entries()[one.algorithm]) and _is_plain(one.algorithm, one.mine):
            size = f"{one.mine.rows} x {one.mine.steps}"
            factors[one.other.implementation, one.other.measure, one.algorithm, size] = one.factor
    names = _base_algorithms(collection)
    panels = canvas.subplots(1, len(pairs), sharey=True)
    # Symmetric, so that white is where both take the same.
    scale, colours = Normalize(-2, 2), colormaps["RdBu"].with_extremes(bad="#dddddd")
    drawn = False
    for panel, (who, measure) in zip(panels, pairs, strict=True):
        table = [[factors.get((who, measure, name, size), math.nan) for name in names] for size in sizes]
        panel.imshow([[math.log10(x) for x in row] for row in table], cmap=colours, norm=scale, aspect="auto")
        for i, row in enumerate(table):
            for j, factor in enumerate(row):
                if not math.isnan(factor):
                    drawn = True
                    said = f"{factor:.2g}" if factor < 100 else f"{factor:.0f}"
                    ink = "white" if abs(math.log10(factor)) > 1.2 else "black"
                    panel.text(j, i, said, ha="center", va="center", color=ink)
        panel.set_title(f"{who}, {measure}")
        panel.set_xticks(range(len(names)), names, rotation=45, ha="right")
        panel.set_yticks(range(len(sizes)), sizes)
    return drawn


def errors(collection: Collection, canvas: Any) -> bool:
    """Every error of ours and of others, relative to the largest value, where float32 went in."""
    panel = canvas.subplots()
    names = _base_algorithms(collection)
    others = list(dict.fromkeys(who for _, who, _ in GPU_COLUMNS))
    drawn = set()
    for i, name in enumerate(names):
        for figure in collection.figures[name]:
            if figure.error and figure.inputs.startswith("float32"):
                who = figure.implementation
                place = others.index(who)
                # Side by side: many are equal.
                panel.scatter(
                    *(i + 0.1 * (place - len(others) / 2), figure.error),
                    s=6,
                    color=COLOURS[place],
                    label=None if who in drawn else who,
                )
                drawn.add(who)
    panel.set(yscale="log", ylabel="largest relative error")
    panel.set_xticks(range(len(names)), names, rotation=45, ha="right")
    if drawn:
        canvas.legend(loc="outside right upper", frameon=False)
    return bool(drawn)


def _is_plain(algorithm: str, figure: Figure) -> bool:
    """Whether it has the inputs that most shapes are measured with."""
    wanted = plain(entries()[algorithm], figure.rows, figure.steps)
    return (figure.layout, figure.inputs) == (wanted.layout, wanted.inputs)


def _base_algorithms(collection: Collection) -> list[str]:
    return [name for name in collection.figures if name in entries() and not is_variant(entries()[name])]
