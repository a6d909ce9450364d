"""Every block of Python in the documentation runs alone, as a reader copies it.

Each block is a program of its own, in a folder of its own. The folder holds what the pages take for granted:
photographs in `photos/train` and `photos/val`, tokens in `web.bin` and `books.bin`, and the blocks of the same page
that are files (`<!-- file: NAME -->`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import programs

from .pages import PAGES, Block, blocks_of

RUN = [block for page in PAGES for block in blocks_of(page) if block.reason is None and block.needs is None]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs of two classes, sixteen to train with and four to validate, and two files of tokens."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 2)):
        for kind in ("cat", "dog"):
            place = folder / "photos" / part / kind
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
                image.fromarray(pixels).save(place / f"{number}.jpg")
    for name in ("web.bin", "books.bin"):
        rng.integers(0, 512, 100_000, dtype=np.uint16).tofile(folder / name)
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_a_block_runs_alone(block: Block, prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder)
    for other in blocks_of(block.page):
        if other.file is not None:
            (folder / other.file).write_text(other.code)

    program = folder / "block.py"
    program.write_text(block.program())
    done = programs.run([program.name], cwd=folder)
    assert done.returncode == 0, f"{block.name}:\n{done.stderr[-3000:]}"


def test_a_block_names_all_that_it_imports_and_makes(tmp_path: Path) -> None:
    """Also in functions that the block does not call."""
    lines = {}
    for number, block in enumerate(block for page in PAGES for block in blocks_of(page)):
        (tmp_path / f"block{number:03}.py").write_text(block.program())
        lines[f"block{number:03}.py"] = block.name

    ruff = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F821,E9",
        "--output-format",
        "concise",
        ".",
    ]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = re.sub(r"block\d{3}\.py", lambda match: lines[match[0]], done.stdout)
    assert done.returncode == 0, said + done.stderr


def test_all_blocks_of_python_are_found() -> None:
    for page in PAGES:
        assert len(blocks_of(page)) == page.read_text().count("\n```python\n"), page.name


def test_a_block_that_is_not_run_says_why() -> None:
    left_out = [(block.name, block.reason) for page in PAGES for block in blocks_of(page) if block.reason is not None]
    assert len(left_out) <= 5, left_out
