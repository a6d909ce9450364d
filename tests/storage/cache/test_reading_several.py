"""Several spans of an object, read at once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.removal import take_file
from tests.storage.cache.conftest import Opener
from tests.storage.cache.processes import BLOCK, content

URL = "s3://bucket/train.tar"
BLOCKS = 12
VERSIONS = itertools.count()
"""Each example has an object of its own."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, BLOCKS * BLOCK), st.integers(0, 3 * BLOCK)), max_size=6),
    gone=st.sets(st.integers(0, BLOCKS - 1), max_size=3),
    seen=st.booleans(),
)
def test_all_of_them_are_right_or_it_is_told(
    open_cache: Opener, spans: list[tuple[int, int]], gone: set[int], seen: bool
) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, f"e{next(VERSIONS)}", BLOCKS * BLOCK, BLOCK)
    data = content(URL, BLOCKS * BLOCK)
    for number in {*range(BLOCKS)} - gone:
        part = data[number * BLOCK : (number + 1) * BLOCK]
        assert cached.insert(number * BLOCK, part)
        if seen:
            assert cached.read_into(number * BLOCK, (number + 1) * BLOCK, bytearray(BLOCK))

    wanted = [(start, min(start + length, len(data))) for start, length in spans]
    buffers = [bytearray(stop - start) for start, stop in wanted]
    complete = not any(
        number in gone for start, stop in wanted if stop > start for number in range(start // BLOCK, -(-stop // BLOCK))
    )
    assert cached.read_several([(*span, out) for span, out in zip(wanted, buffers, strict=True)]) == complete
    if complete:
        assert buffers == [data[start:stop] for start, stop in wanted]


def test_an_object_that_leaves_between_two_spans_is_missing(
    open_cache: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    cached = cache.open_object(URL, "e", BLOCKS * BLOCK, BLOCK)
    data = content(URL, BLOCKS * BLOCK)
    assert cached.insert(0, data)
    assert cached.read_into(0, len(data), bytearray(len(data)))
    read_fully = OpenFile.read_fully
    reads = 0

    def disturbed(self: OpenFile, out: Any, length: int, position: int) -> bool:
        nonlocal reads
        reads += 1
        if reads == 2:
            assert take_file(cache.node, cached.name)
        return read_fully(self, out, length, position)

    monkeypatch.setattr(OpenFile, "read_fully", disturbed)
    buffers = [bytearray(BLOCK), bytearray(BLOCK)]
    spans = [(0, BLOCK, buffers[0]), (7 * BLOCK, 8 * BLOCK, buffers[1])]
    assert not cached.read_several(spans)
    assert cached.insert(0, data)
    assert cached.read_several(spans)
    assert buffers == [data[:BLOCK], data[7 * BLOCK : 8 * BLOCK]]
