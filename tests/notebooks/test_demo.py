"""The notebook of the examples, in a real kernel: every cell runs, and shows what its text promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks.kernels import kernel

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def cells_of_code() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_every_cell_runs_and_shows_what_its_text_promises(tmp_path: Path) -> None:
    with kernel(tmp_path) as notebook:
        shown = [notebook.run("".join(cell["source"])) for cell in cells_of_code()]

    assert [cell.error for cell in shown] == [""] * len(shown)
    made, looped, resumed, damaged, spawned, _ = shown
    assert "400" in made.results[0] and "wood" in made.results[0]
    assert looped.results[0].startswith('<div class="headrace">')
    assert resumed.printed == "7 + 13 batches, equal to the whole epoch: True\n"
    assert "400 samples came, 1 of them in the place of a damaged one" in damaged.printed
    assert "sample 250: SampleError: cannot decode an image" in damaged.printed
    assert spawned.printed.startswith("workers cannot get a class or function of this program")


def test_the_notebook_holds_no_outputs() -> None:
    """Those of one machine would look like promises, and change with every run."""
    assert [cell["outputs"] for cell in cells_of_code() if cell["outputs"]] == []
