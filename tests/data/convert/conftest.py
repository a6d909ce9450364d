"""What tests of `headrace pack` share."""

from __future__ import annotations

import pytest

from headrace.data.convert import plan
from tests.data.convert.packing import PIECE


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples in a piece and in a shard, so that small data have several."""
    monkeypatch.setattr(plan, "PIECE", PIECE)
    monkeypatch.setattr(plan, "SHARD", PIECE)
