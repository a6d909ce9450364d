"""The picture of the README: what the demo showed of a resume and of workers by spawn, as squares and bars.

    python -m benchmarks page demo
    python -m benchmarks.demo_picture

The same results make the same file, docs/images/demo.svg.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.demo import MEMORY, RESUMED, START
from benchmarks.harness.pictures import INK, OTHERS_COLOUR, OURS_COLOUR
from benchmarks.harness.table import OURS, Table
from headrace.demo.resume import KILLED_AT, SAVED_AT

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "demo.json"
PICTURE = ROOT / "docs" / "images" / "demo.svg"

BEFORE, AGAIN, OTHERS = "#b9d9df", "#d1495b", "#edae49"
"""Steps before the checkpoint, steps that are trained twice, and steps with other augmentations."""


def rows_of_steps(table: Table) -> list[tuple[str, list[str], str]]:
    """Returns for each loader its name, the colours of its steps, and what they mean.

    table: of the resume, with two workers in its first two rows: as many batches of the same samples, and equal ones.
    """
    same, equal = table.rows[0].figures, table.rows[1].figures
    rest = int(equal[OURS][0])
    rows = [
        (
            "torch",
            [BEFORE] * SAVED_AT + [AGAIN] * SAVED_AT + [OURS_COLOUR] * rest,
            f"starts the epoch again: {SAVED_AT} steps twice",
        )
    ]
    if "torchdata" in equal:
        alike, kept = int(same["torchdata"][0]), int(equal["torchdata"][0])
        colours = [OURS_COLOUR] * kept + [OTHERS] * (alike - kept)
        rows.append(("torchdata", [BEFORE] * SAVED_AT + colours, f"{kept} of {alike} batches as without the kill"))
    rows.append(
        ("headrace", [BEFORE] * SAVED_AT + [OURS_COLOUR] * rest, f"{rest} of {rest} batches as without the kill")
    )
    return rows


def draw(tables: dict[str, Table], picture: Path) -> None:
    """Draws the two scenes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    pyplot.rcParams["svg.hashsalt"] = "headrace"
    pyplot.rcParams["font.size"] = 8
    figure, (steps, seconds, memory) = pyplot.subplots(
        1, 3, figsize=(7.2, 1.7), width_ratios=[4.2, 1.5, 1.5], layout="constrained"
    )

    rows = rows_of_steps(tables[RESUMED])
    for row, (name, colours, words) in enumerate(rows):
        for step, colour in enumerate(colours):
            steps.add_patch(patches.Rectangle((step, -row), 0.85, 0.5, color=colour))
        steps.text(-0.4, -row + 0.25, name, ha="right", va="center", color=INK)
        steps.text(0, -row - 0.08, words, ha="left", va="top", color=INK, fontsize=7)
    steps.set_xlim(-5.2, 20)
    steps.set_ylim(-len(rows) + 0.5, 0.7)
    steps.axis("off")
    steps.set_title(f"kill -9 after step {KILLED_AT}, checkpoint at step {SAVED_AT}: steps that train", fontsize=8)

    for axes, measured, digits, title in (
        (seconds, START, "%.1f", "first batch, s"),
        (memory, MEMORY, "%.2f", "memory, GB"),
    ):
        names = ["torch", OURS]
        values = [tables[measured].rows[0].figures[name][0] for name in names]
        bars = axes.barh(names, values, color=[OTHERS_COLOUR, OURS_COLOUR], height=0.55)
        axes.bar_label(bars, fmt=digits, padding=2, color=INK)
        axes.set_xlim(0, max(values) * 1.35)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=8)
        axes.set_xticks([])
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0)
    memory.set_yticks([])

    figure.savefig(picture, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


if __name__ == "__main__":
    kept = json.loads(RESULTS.read_text())["tables"]
    draw({one["title"]: Table.from_json(one) for one in kept}, PICTURE)
