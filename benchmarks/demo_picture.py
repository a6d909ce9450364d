"""The picture of the README: what `headrace demo resume spawn` showed, as squares and bars.

    headrace demo resume spawn --json benchmarks/results/demo.json
    python -m benchmarks.demo_picture

The same results make the same file, docs/images/demo.svg.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness.pictures import INK, OTHERS_COLOUR, OURS_COLOUR

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "demo.json"
PICTURE = ROOT / "docs" / "images" / "demo.svg"

BEFORE, AGAIN, OTHERS = "#b9d9df", "#d1495b", "#edae49"
"""Steps before the checkpoint, steps that are trained twice, and steps with other augmentations."""


def rows_of_steps(facts: dict[str, Any], saved_at: int) -> list[tuple[str, list[str], str]]:
    """Returns for each loader its name, the colours of its steps, and what they mean."""
    steps = facts["headrace"]["steps"]
    rest = steps - saved_at
    same, equal = facts["headrace"]["2 workers"]
    rows = [
        (
            "torch",
            [BEFORE] * saved_at + [AGAIN] * saved_at + [OURS_COLOUR] * rest,
            f"starts the epoch again: {saved_at} steps twice",
        )
    ]
    if facts.get("torchdata"):
        same, kept = facts["torchdata"]["2 workers"]
        colours = [OURS_COLOUR] * kept + [OTHERS] * (same - kept)
        rows.append(("torchdata", [BEFORE] * saved_at + colours, f"{kept} of {same} batches as without the kill"))
    rows.append(
        ("headrace", [BEFORE] * saved_at + [OURS_COLOUR] * equal, f"{equal} of {rest} batches as without the kill")
    )
    return rows


def draw(results: dict[str, Any], picture: Path) -> None:
    """Draws the two scenes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import patches, pyplot

    from headrace.demo.resume import KILLED_AT, SAVED_AT

    pyplot.rcParams["svg.hashsalt"] = "headrace"
    pyplot.rcParams["font.size"] = 8
    figure, (steps, seconds, memory) = pyplot.subplots(
        1, 3, figsize=(7.2, 1.7), width_ratios=[4.2, 1.5, 1.5], layout="constrained"
    )

    rows = rows_of_steps(results["resume"]["facts"], SAVED_AT)
    for row, (name, colours, words) in enumerate(rows):
        for step, colour in enumerate(colours):
            steps.add_patch(patches.Rectangle((step, -row), 0.85, 0.5, color=colour))
        steps.text(-0.4, -row + 0.25, name, ha="right", va="center", color=INK)
        steps.text(0, -row - 0.08, words, ha="left", va="top", color=INK, fontsize=7)
    steps.set_xlim(-5.2, 20)
    steps.set_ylim(-len(rows) + 0.5, 0.7)
    steps.axis("off")
    steps.set_title(f"kill -9 after step {KILLED_AT}, checkpoint at step {SAVED_AT}: steps that train", fontsize=8)

    for axes, quantity, unit, title in (
        (seconds, "first_batch", 1.0, "first batch, s"),
        (memory, "peak_bytes", 1e9, "memory, GB"),
    ):
        names = ["torch", "headrace"]
        values = [results["spawn"]["figures"][name][quantity] / unit for name in names]
        bars = axes.barh(names, values, color=[OTHERS_COLOUR, OURS_COLOUR], height=0.55)
        axes.bar_label(bars, fmt="%.1f" if unit == 1.0 else "%.2f", padding=2, color=INK)
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
    draw(json.loads(RESULTS.read_text()), PICTURE)
