"""The picture of docs/howto/packing.md: documents, the packs that a sampler makes of them, and the ranks that get them.

    python docs/images/packing.py        # writes docs/images/packing.svg

The same program makes the same file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from canvas import INK, OTHERS_COLOUR, box, draw

from headrace.samplers import PackedBatchSampler

PICTURE = Path(__file__).with_suffix(".svg")

PALE = "#f3f4f6"
SHADES = ("#1f7a8c", "#5aa9b8", "#2d5f6b", "#8cc7d3", "#3b8ea0", "#174f5b")
"""Of documents, one after the other."""

WIDTH, HEIGHT = 7.2, 3.0
"""Inches. The axes have a hundred units for each ten inches of both."""

LENGTHS = (900, 300, 610, 150, 410, 120, 720, 260, 510, 640, 830, 514)
BUDGET = 1024
RANKS = 2
ROW = 1.55
"""The height of a document."""


def parts(axes: Any) -> None:
    """Draws all of it."""
    _documents(axes)
    _packs(axes)


def _documents(axes: Any) -> None:
    axes.text(1.5, 28.2, "a window of documents", weight="bold")
    for number, length in enumerate(LENGTHS):
        bottom = 25.2 - number * (ROW + 0.5)
        box(axes, 3.6, bottom, 16 * length / BUDGET, ROW, face=SHADES[number % len(SHADES)], edge="white")
        axes.text(3.0, bottom + 0.35, str(number), ha="right")


def _packs(axes: Any) -> None:
    sampler = PackedBatchSampler(LENGTHS, BUDGET, balance="attention", seed=1, rank=0, world_size=1)
    left, width = 31.0, 24.0
    axes.text(left, 28.2, f"packs of at most {BUDGET:,} tokens", weight="bold")
    axes.text(left + width + 2.2, 28.2, "ranks", weight="bold")
    bottom = 25.2
    for number, batch in enumerate(sampler):
        box(axes, left, bottom, width, ROW, face=PALE, edge=OTHERS_COLOUR)
        at = left
        for key, start, stop in batch.packs[0]:
            size = width * (stop - start) / BUDGET
            box(axes, at, bottom, size, ROW, face=SHADES[key % len(SHADES)], edge="white")
            axes.text(at + size / 2, bottom + 0.35, str(key), ha="center", color="white")
            at += size
        axes.text(left + width + 2.2, bottom + 0.35, f"rank {number % RANKS}, step {number // RANKS}")
        bottom -= ROW + (0.5 if number % RANKS == 0 else 2.2)
    arrow = {"arrowstyle": "->", "color": INK}
    axes.annotate("", (left - 1.2, 15.0), (left - 7.5, 15.0), arrowprops=arrow)
    axes.text(left - 4.4, 15.6, "plan", ha="center")
    axes.text(left, bottom - 0.4, "Pale: padding. In a step, the ranks get packs of like cost.")
    axes.text(left, bottom - 2.4, "The plan depends on lengths, seed, epoch and window alone:")
    axes.text(left, bottom - 4.0, "other ranks get the same packs in the same order.")


if __name__ == "__main__":
    draw(PICTURE, WIDTH, HEIGHT, parts)
