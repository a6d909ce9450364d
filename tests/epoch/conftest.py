"""The rank of this process, as a launcher tells it."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def on_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Makes this process the given rank, as a launcher would."""

    def become(rank: int, size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))

    return become
