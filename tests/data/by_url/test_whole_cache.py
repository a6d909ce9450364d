"""A cache that holds everything: the server is left alone, nothing is read ahead, and what goes missing comes again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import UsageError
from headrace.loader.read_ahead import EpochReadAhead
from tests.data.by_url.conftest import Twice
from tests.data.by_url.test_every_form import same
from tests.servers.faulty import FaultyServer

Make = Callable[..., Twice]


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions that this process announces to whatever reads for it."""
    positions: list[int] = []
    announce = EpochReadAhead._announce

    def noted(self: EpochReadAhead, announced: Any, position: int, index: object) -> None:
        positions.append(position)
        announce(self, announced, position, index)

    monkeypatch.setattr(EpochReadAhead, "_announce", noted)
    return positions


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["pt", "webdataset"])
def test_later_epochs_ask_for_nothing_and_announce_nothing(
    twice: Make, tmp_path: Path, faulty_server: FaultyServer, announced: list[int], workers: int, name: str
) -> None:
    data = twice(name, "s3", cache_dir=tmp_path / "cache")
    words = {"batch_size": 1, "seed": 3, "shuffle": True, "num_workers": workers}
    expected = headrace.DataLoader(data.local, **words)
    loader = headrace.DataLoader(data.remote, **words)
    for epoch in range(4):
        assert all(map(same, loader, expected))
        if epoch == 0:
            asked = len(faulty_server.asked())
            assert announced
        if epoch == 1:
            announced.clear()
    assert len(faulty_server.asked()) == asked
    assert announced == []


@pytest.mark.thorough
def test_a_cache_that_is_emptied_meanwhile_is_filled_again(
    twice: Make, tmp_path: Path, faulty_server: FaultyServer, announced: list[int]
) -> None:
    data = twice("pt", "s3", cache_dir=tmp_path / "cache")
    words = {"batch_size": 1, "seed": 3, "shuffle": True}
    expected = headrace.DataLoader(data.local, **words)
    loader = headrace.DataLoader(data.remote, **words)
    for _ in range(3):
        assert all(map(same, loader, expected))

    announced.clear()
    asked = len(faulty_server.asked())
    for number, (one, other) in enumerate(zip(loader, expected, strict=True)):
        assert same(one, other)
        if number == 0:
            for file in (tmp_path / "cache" / "objects").rglob("*.blocks"):
                file.unlink()
    assert len(faulty_server.asked()) > asked
    assert announced


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hdf5", "npz", "jsonl", "pt"])
def test_a_relative_folder_is_that_of_the_one_who_opens(
    twice: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    data = twice(name, "s3", cache_dir="cache")
    monkeypatch.chdir("/")
    for one, other in zip(headrace.DataLoader(data.remote), headrace.DataLoader(data.local), strict=True):
        assert same(one, other)
    assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize("folder", [5, "", b"cache", True])
def test_a_folder_that_is_none_is_refused(twice: Make, folder: Any) -> None:
    with pytest.raises(UsageError, match="cache_dir"):
        twice("pt", "s3", cache_dir=folder)
