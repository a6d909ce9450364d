"""Objects of many blocks, whose tables are megabytes."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.storage.cache.layout import Shape
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import take_blocks
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


def test_a_block_is_read_while_others_of_its_object_leave(open_cache: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of each read, for as long as the reader does not keep them from it."""
    cache = open_cache()
    cached = cache.open_object(URL, "e", 100 * BLOCK, BLOCK)
    data = content(URL, 100 * BLOCK)
    assert cached.insert(0, data)
    read_fully = OpenFile.read_fully
    left = list(range(100))

    def disturbed(self: OpenFile, out: Any, length: int, position: int) -> bool:
        assert take_blocks(cache.node, cached.name, [left.pop()])
        return read_fully(self, out, length, position)

    monkeypatch.setattr(OpenFile, "read_fully", disturbed)
    assert read(cached, 3 * BLOCK, 5 * BLOCK) == data[3 * BLOCK : 5 * BLOCK]
    assert len(left) < 98


def test_blocks_that_are_being_read_are_not_taken_away(open_cache: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e", 10 * BLOCK, BLOCK)
    data = content(URL, 10 * BLOCK)
    assert cached.insert(0, data)
    read_fully = OpenFile.read_fully
    taken = []

    def disturbed(self: OpenFile, out: Any, length: int, position: int) -> bool:
        taken.append(take_blocks(cache.node, cached.name, [9 - len(taken)]))
        if len(taken) > 3:
            taken.append(take_blocks(cache.node, cached.name, [3]))
        return read_fully(self, out, length, position)

    monkeypatch.setattr(OpenFile, "read_fully", disturbed)
    assert read(cached, 3 * BLOCK, 4 * BLOCK) == data[3 * BLOCK : 4 * BLOCK]
    assert taken[-1] == 0
    assert all(taken[:-1])
