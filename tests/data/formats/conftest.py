"""What tests of formats share."""

from __future__ import annotations

import pytest

from headrace.data.formats.columns import byte_spans, remote_arrays


@pytest.fixture
def everything_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data are read as those are that are too large to be kept."""
    monkeypatch.setattr(remote_arrays, "SMALL", 0)
    monkeypatch.setattr(byte_spans, "BLOCK", 64)
