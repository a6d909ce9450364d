"""Pictures of results: for every contender a bar of its ratio to torch (or to what a table is based on), as SVG.

Bars begin at 1, which is torch, and go right where a contender does better; the axis is logarithmic; whiskers reach
from the lowest to the highest ratio of all rounds. The same results make the same file.
"""

from __future__ import annotations

import statistics
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.sections import times
from benchmarks.harness.table import OURS, Table

OURS_COLOUR, OTHERS_COLOUR, INK = "#1f7a8c", "#b0b7c3", "#24292f"
WIDTH, BAR, PANEL = 7.2, 0.24, 0.75
"""Inches: of a picture, of a bar's height, and of what a panel needs besides its bars."""
TITLE, LABEL = 84, 42
"""Letters in a line of a title, and of a label."""
MANY = 200
"""A range of ratios beyond which only powers of ten are written at the axis."""


@dataclass(frozen=True)
class Bar:
    """A contender in one setting: its ratio to the base, median, lowest and highest."""

    label: str
    median: float
    low: float
    high: float
    is_ours: bool


def bars_of(table: Table) -> list[Bar]:
    """Returns the bars of a table, in the order of its lines."""
    bars = []
    for row in table.rows:
        for name in table.columns:
            ratios = table.ratios(row, name, table.base) if name != table.base else []
            if ratios:
                label = row.title if name == OURS else name if len(table.rows) == 1 else f"{row.title}: {name}"
                label = label or name
                bars.append(Bar(label, statistics.median(ratios), min(ratios), max(ratios), table.is_ours(name)))
    return bars


def draw(result: dict[str, Any], path: Path) -> bool:
    """Draws a result, a panel for each table that has a base. Returns whether there was anything to draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tables = [Table.from_json(one) for one in result["tables"]]
    panels = [(table, bars) for table in tables if (bars := bars_of(table))]
    if not panels:
        return False
    heights = [BAR * len(bars) + PANEL for _, bars in panels]
    settings = {"svg.hashsalt": OURS, "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 8}
    settings |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(settings):
        figure = pyplot.figure(figsize=(WIDTH, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(panels), height_ratios=heights, squeeze=False)[:, 0]
        for part, (table, bars) in zip(parts, panels, strict=True):
            part.suptitle(textwrap.fill(table.title, TITLE), x=0.01, ha="left", size=9, weight="bold")
            _panel(part.subplots(), table, bars)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
        pyplot.close(figure)
    return True


def _panel(axis: Any, table: Table, bars: list[Bar]) -> None:
    from matplotlib import ticker

    for place, bar in enumerate(bars):
        colour = OURS_COLOUR if bar.is_ours else OTHERS_COLOUR
        axis.barh(place, bar.median - 1, 0.7, left=1, color=colour)
        if bar.high > bar.low:
            axis.plot([bar.low, bar.high], [place, place], color=INK, linewidth=0.8, marker="|", markersize=4)
        axis.annotate(times(bar.median), (max(bar.high, 1.0), place), (5, 0), textcoords="offset points", va="center")
    axis.set_xscale("log")
    low, high = min(0.5, *(bar.low for bar in bars)), max(2.0, *(bar.high for bar in bars))
    axis.set_xlim(low / 1.1, high * (high / low) ** 0.14)  # room for the figures
    steps = (1, 2, 5) if high / low < MANY else (1,)
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=steps, numticks=20))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.set_yticks(range(len(bars)), [textwrap.fill(bar.label, LABEL) for bar in bars], linespacing=0.9)
    axis.set_ylim(len(bars) - 0.4, -0.6)
    axis.axvline(1, color=INK, linewidth=0.8)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    words = f"times the {table.unit} of" if table.better == "more" else f"times fewer {table.unit} than"
    axis.set_xlabel(f"{words} {table.base}; right is better")
