"""A cache of its own for each test, and none of its descriptors left open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.storage.cache import DiskCache
from tests.belongings import open_files

Opener = Callable[..., DiskCache]


@pytest.fixture
def said() -> list[str]:
    """What the caches of the test say."""
    return []


@pytest.fixture
def open_cache(tmp_path: Path, said: list[str]) -> Iterator[Opener]:
    """Opens caches, by default in one folder; they are closed after the test."""
    opened: list[DiskCache] = []

    def opener(limit: int | str | None = None, *, folder: Path | None = None, **more: Any) -> DiskCache:
        cache = DiskCache(folder or tmp_path / "cache", limit, say=said.append, **more)
        opened.append(cache)
        return cache

    yield opener
    for cache in opened:
        cache.close()
    assert open_files(tmp_path) == []
