"""Each benchmark runs at a small size, and its tables have the contenders whose figures the page has."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from benchmarks.harness import page

from benchmarks import catalog
from tests import programs

LACKING = ("is not installed", "no broker: ", "Skipped: ", "may not make network namespaces")
"""What a benchmark says that this machine has no server for."""


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", catalog.BENCHMARKS)
def test_a_benchmark_runs_and_compares_what_comes(name: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    words = ["-m", "benchmarks", name, "--quick", "--json", figures]
    done = programs.run(words, cwd=page.ROOT, timeout=390, fresh=True)
    if done.returncode and (lacking := [text for text in LACKING if text in done.stderr]):
        pytest.skip(f"{name}: {lacking[0]}")
    assert done.returncode == 0, done.stderr

    found = json.loads(figures.read_text())
    assert found["quick"] and found["tables"]
    assert any(table["checked"] for table in found["tables"])
    for table in found["tables"]:
        assert table["rows"] and f"**{table['title']}**" in done.stdout
        for row in table["rows"]:
            values = [value for figure in row["figures"].values() for value in figure["values"]]
            assert values and all(math.isfinite(value) and value >= 0 for value in values)

    kept = page.IN_PLACE.result(name)
    if kept.exists():
        on_page = [(table["unit"], set(table["columns"])) for table in json.loads(kept.read_text())["tables"]]
        for table in found["tables"]:
            assert (table["unit"], set(table["columns"])) in on_page
