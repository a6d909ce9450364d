"""Objects of many blocks, whose tables are megabytes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.storage.cache.layout import Shape
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import take_file
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
            cached.insert(number * BLOCK, content(URL, BLOCK), number)
    assert read(cached, 0, BLOCK) == content(URL, BLOCK)
    assert not cached.has(39 * BLOCK, 40 * BLOCK)  # there was no room
    assert sum(looked_at) < count


@pytest.mark.parametrize("comes_back", [False, True])
def test_an_object_that_leaves_in_the_middle_of_a_read_is_missing_or_read_anew(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e", 10 * BLOCK, BLOCK)
    data = content(URL, 10 * BLOCK)
    assert cached.insert(0, data)
    read_fully = OpenFile.read_fully
    left = [1]

    def disturbed(self: OpenFile, out: Any, length: int, position: int) -> bool:
        if left:
            assert take_file(cache.node, cached.name, claimed=True) == left.pop() * 4096 + 10 * BLOCK
            if comes_back:
                assert cached.insert(0, data)
        return read_fully(self, out, length, position)

    monkeypatch.setattr(OpenFile, "read_fully", disturbed)
    expected = None
    if comes_back:
        expected = data[3 * BLOCK : 5 * BLOCK]
    assert read(cached, 3 * BLOCK, 5 * BLOCK) == expected
    assert not left
