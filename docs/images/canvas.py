"""What the programs that draw pictures share: colours, and an empty picture that is the same file in every run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS_COLOUR, OTHERS_COLOUR, INK = "#1f7a8c", "#b0b7c3", "#24292f"
"""As in the pictures of the benchmarks."""


def draw(path: Path, width: float, height: float, parts: Callable[[Any], None]) -> None:
    """Writes a picture of so many inches. parts: draws on its axes, which have a hundred units for ten inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = {"svg.hashsalt": "headrace", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 8}
    with matplotlib.rc_context({**settings, "text.color": INK}):
        figure = pyplot.figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, 10 * width)
        axes.set_ylim(0, 10 * height)
        axes.axis("off")
        parts(axes)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
        pyplot.close(figure)


def box(axes: Any, left: float, bottom: float, width: float, height: float, **how: Any) -> None:
    """Draws a rectangle. how: its `face`, its `edge`, and the width of the `line`."""
    from matplotlib.patches import Rectangle

    line = how.get("line", 0.8)
    axes.add_patch(Rectangle((left, bottom), width, height, facecolor=how["face"], edgecolor=how["edge"], lw=line))
