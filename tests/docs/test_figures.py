"""Figures in the README and in summaries are those of the pages that are made from results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .pages import DOCS, ROOT

FIGURE = re.compile(r"(?<![\w.])(\d[\d,]*\.\d+|\d[\d,]{3,})(?= ?(?:x\b|GB|MB|s\b|ms\b|images|samples|:))")
SUMMARIES = [ROOT / "README.md", DOCS / "index.md", DOCS / "benchmarks" / "index.md"]
SOURCES = [DOCS / "benchmarks" / "figures.md"]
EXAMPLES = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
"""Blocks: outputs of examples, which belong to no benchmark."""


def rounded(number: float) -> set[str]:
    """A figure as tables write it, with two to four digits."""
    return {f"{number:,.0f}", f"{number:,.1f}", f"{number:,.2f}", f"{number:.3g}", f"{number:,.3g}"}


@pytest.mark.parametrize("page", SUMMARIES, ids=lambda page: page.parent.name + "-" + page.stem)
def test_each_figure_of_a_summary_stands_where_it_was_measured(page: Path) -> None:
    text = EXAMPLES.sub("", page.read_text())
    measured = "".join(source.read_text() for source in SOURCES)
    found = set(FIGURE.findall(text))
    assert {figure for figure in found if not re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.])", measured)} == set()


def test_summaries_have_figures() -> None:
    counts = {page.name: len(FIGURE.findall(EXAMPLES.sub("", page.read_text()))) for page in SUMMARIES}
    assert counts["README.md"] >= 5
    assert len(FIGURE.findall(SUMMARIES[2].read_text())) >= 10


def test_figures_of_a_gpu_are_those_of_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "device.json").read_text())
    measured: set[str] = set()
    for one in results["figures"]:
        value = one.get("value")
        if isinstance(value, (int, float)):
            for number in (value, value / 1e3):  # microseconds are shown in milliseconds
                measured |= rounded(number)

    page = (DOCS / "howto" / "gpu.md").read_text()
    table = page.split("## Measured on an H100", 1)[1].split("\n## ", 1)[0]
    cells = [cell for line in table.splitlines() if line.startswith("| ") for cell in line.split("|")[2:]]
    shown = set(FIGURE.findall("\n".join(cells)))
    assert len(shown) >= 8
    assert shown - measured == set()
