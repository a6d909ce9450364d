"""The picture of docs/howto/sources.md: a log in spans, the journal, the I/O process, workers, and what a state holds.

    python docs/images/sources.py        # writes docs/images/sources.svg

The same program makes the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canvas import INK, OTHERS_COLOUR, OURS_COLOUR, box, draw

PICTURE = Path(__file__).with_suffix(".svg")

PALE, SAVED = "#d7ebee", "#b3541e"
"""Colours: of what is read, and of what is in a state."""

WIDTH, HEIGHT = 7.2, 3.5
"""Inches. The axes have a hundred units for each ten inches of both."""

CELL, GAP = 1.75, 0.35
"""Of a record in the log."""

PARTITIONS = ((4, 4, 3), (4, 3, 5), (4, 5, 2))
"""Records of each partition in each span: one has more where another has none."""

SPANS = ("span 0: done", "span 1: open", "span 2: read ahead")


def parts(axes: Any) -> None:
    """Draws all of it."""
    _log(axes)
    _processes(axes)
    _journal(axes)
    _state(axes)


def _log(axes: Any) -> None:
    axes.text(1.5, 32.8, "a log: Kafka, streams of RabbitMQ and Redis, tables that grow", weight="bold")
    left = 12.0
    for number, title in enumerate(SPANS):
        width = max(counts[number] for counts in PARTITIONS) * (CELL + GAP)
        colour = ("#f3f4f6", PALE, "#ffffff")[number]
        edge = SAVED if number == 1 else OTHERS_COLOUR
        box(axes, left - 0.5, 22.2, width + 0.7, 8.6, face=colour, edge=edge, line=1.6 if number == 1 else 0.8)
        axes.text(left, 31.2, title, color=SAVED if number == 1 else INK)
        for partition, counts in enumerate(PARTITIONS):
            for record in range(counts[number]):
                face = OURS_COLOUR if number == 1 else OTHERS_COLOUR
                bottom = 28.3 - 2.7 * partition
                box(axes, left + record * (CELL + GAP), bottom, CELL, 1.7, face=face, edge="none")
        left += width + 1.6

    for partition in range(len(PARTITIONS)):
        axes.text(1.5, 28.6 - 2.7 * partition, f"partition {partition}")
    axes.annotate("", (left + 4.5, 26.4), (left - 0.4, 26.4), arrowprops={"arrowstyle": "->", "color": INK})
    axes.text(left + 0.2, 27.0, "no end")


def _processes(axes: Any) -> None:
    box(axes, 19, 10.6, 15, 6.6, face=PALE, edge=OURS_COLOUR)
    axes.text(26.5, 14.9, "I/O process", ha="center", weight="bold")
    axes.text(26.5, 12.0, "reads, cuts spans,\nshared memory", ha="center")
    for number, bottom in enumerate((14.4, 10.6)):
        box(axes, 40, bottom, 12, 2.8, face=PALE, edge=OURS_COLOUR)
        axes.text(46, bottom + 0.9, f"worker {number}: decodes", ha="center")
    box(axes, 58, 10.6, 12.5, 6.6, face=PALE, edge=OURS_COLOUR)
    axes.text(64.25, 14.9, "training loop", ha="center", weight="bold")
    axes.text(64.25, 12.0, "batches, in the\norder of the seed", ha="center")
    _arrow(axes, (26.5, 22.0), (26.5, 17.3))
    for middle in (15.8, 12.0):
        _arrow(axes, (34.1, 13.9), (39.9, middle))
        _arrow(axes, (52.1, middle), (57.9, 13.9))


def _journal(axes: Any) -> None:
    axes.text(1.5, 18.2, "queues and sockets", weight="bold")
    axes.text(1.5, 16.6, "deliver a message once")
    box(axes, 1.5, 10.6, 11.5, 3.6, face="#ffffff", edge=INK)
    axes.text(7.25, 12.3, "journal", ha="center", weight="bold")
    axes.text(7.25, 11.1, "a log on the disk", ha="center")
    _arrow(axes, (7.25, 16.2), (7.25, 14.3))
    _arrow(axes, (13.1, 12.4), (18.9, 12.4))


def _state(axes: Any) -> None:
    box(axes, 19, 1.2, 51.5, 5.4, face="#fbf1ea", edge=SAVED)
    axes.text(20.2, 4.7, "loader.state_dict(), in your checkpoint", weight="bold", color=SAVED)
    axes.text(20.2, 2.1, "the ranges of positions of the open spans, the position among the samples,\n"
                         "seed and epoch, fields of the records. No records, no passwords.")  # fmt: skip
    _arrow(axes, (64.25, 10.5), (64.25, 6.7), colour=SAVED)
    axes.annotate(
        "loader.commit(state)", (7.25, 10.5), (1.5, 3.4), color=SAVED,
        arrowprops={"arrowstyle": "->", "color": SAVED},
    )  # fmt: skip
    axes.text(1.5, 1.8, "frees what is done with", color=SAVED)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str = INK) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour})


if __name__ == "__main__":
    draw(PICTURE, WIDTH, HEIGHT, parts)
