"""Every block of Python in the documentation runs as it stands.

The blocks of a page are one program, in the order of the page. It runs in a folder that holds what the pages take for
granted: photographs in `photos/train` and `photos/val`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import programs

from .pages import PAGES, ROOT, blocks_of, program_of

WITH_BLOCKS = [page for page in PAGES if any(block.reason is None for block in blocks_of(page))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with photographs of two classes, sixteen to train with and four to validate."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 2)):
        for kind in ("cat", "dog"):
            place = tmp_path / "photos" / part / kind
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                image.fromarray(pixels).save(place / f"{number}.jpg")
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_as_one_program(page: Path, folder: Path) -> None:
    program = folder / "page.py"
    program.write_text(program_of(page))
    done = programs.run([program.name], cwd=folder)
    assert done.returncode == 0, f"{page.relative_to(ROOT)}:\n{done.stderr[-3000:]}"


def test_all_blocks_of_python_are_found() -> None:
    for page in PAGES:
        assert len(blocks_of(page)) == page.read_text().count("\n```python\n"), page.name


def test_a_block_that_is_not_run_says_why() -> None:
    left_out = {page.name: [block.reason for block in blocks_of(page) if block.reason is not None] for page in PAGES}
    assert sum(map(len, left_out.values())) <= 5, left_out
