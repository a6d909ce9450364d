"""Blocks of the documentation that need a framework: each runs alone, as a reader copies it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, Block, blocks_of
from tests.docs.test_tables import numbers_of, versions_of_frameworks

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

BLOCKS = [block for page in PAGES for block in blocks_of(page) if block.needs is not None]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_of_a_framework_runs_alone(block: Block, tmp_path: Path) -> None:
    assert block.needs is not None
    if importlib.util.find_spec(block.needs) is None:
        pytest.skip(f"{block.needs} is not installed: `make test-clients` installs it")

    for other in blocks_of(block.page):
        if other.file is not None:
            (tmp_path / other.file).write_text(other.code)

    program = tmp_path / "block.py"
    program.write_text(block.program())
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, f"{block.name}:\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("package", versions_of_frameworks())
def test_the_page_names_the_version_that_is_tried(package: str) -> None:
    lowest, newest = map(numbers_of, versions_of_frameworks()[package])
    try:
        tried = numbers_of(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed: `make test-clients` installs it")
    # Versions that came out since then are newer than the page.
    assert tried == lowest or tried >= newest
