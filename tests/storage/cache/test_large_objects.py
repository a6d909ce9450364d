"""Objects of many blocks, whose tables are megabytes."""

from __future__ import annotations

import pytest

from headrace.storage.cache.layout import Shape
from headrace.storage.cache.open_files import OpenFile
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, content, read

URL = "s3://bucket/train.bin"


def test_a_block_of_a_large_object_costs_as_little_as_one_of_a_small(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    entries = OpenFile.entries

    def noted(self: OpenFile, shape: Shape, blocks: range) -> list[tuple[int, int]]:
        looked_at.append(len(blocks))
        return entries(self, shape, blocks)

    monkeypatch.setattr(OpenFile, "entries", noted)
    count = 1 << 17
    cache = open_cache(20 * BLOCK + 8 * count)
    cached = cache.open_object(URL, "e1", count * BLOCK, BLOCK)
    for number in range(40):
        with cached.claim(number * BLOCK, (number + 1) * BLOCK) or pytest.fail("claimed by nobody"):
            assert cached.missing(number * BLOCK, (number + 1) * BLOCK)
            assert cached.insert(number * BLOCK, content(URL, BLOCK), 100 - number)
    assert read(cached, 39 * BLOCK, 40 * BLOCK) == content(URL, BLOCK)
    assert not cached.has(0, BLOCK)  # it had to make room
    assert sum(looked_at) < count
