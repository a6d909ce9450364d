"""A training on packs that is killed at random goes on with the next batch on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.samplers import packed_kills


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_some_kills_lose_and_double_no_document(tmp_path: Path) -> None:
    kills, epochs = packed_kills.run(7, 4, tmp_path)
    assert kills == 4
    assert epochs >= 1


@pytest.mark.stress
@pytest.mark.timeout(5400)
def test_two_hundred_kills_lose_and_double_no_document(tmp_path: Path) -> None:
    kills, _ = packed_kills.run(11, 200, tmp_path)
    assert kills == 200
