"""What is fetched for a range where a cache lies in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.storage.cache import CachedObject
from headrace.storage.fetching.range_sources import BLOCK, bring
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion
from headrace.storage.locations import parse
from headrace.storage.stores.objects import store_config
from headrace.storage.stores.registry import CacheSettings, RegisteredStore, StoreSettings, register
from tests.servers.faulty import FaultyServer

DATA = os.urandom(40 * BLOCK + 100)
LIMIT = 30 * BLOCK


@pytest.fixture(params=[None, LIMIT])
def store(faulty_server: FaultyServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RegisteredStore]:
    """One with a cache, which has a limit or none, and an object."""
    faulty_server.put("b", "x", DATA)
    config = store_config(parse("s3://b"), faulty_server.s3_options)
    return register(StoreSettings(config, CacheSettings(tmp_path / "cache", request.param, 7)))


@pytest.fixture
def version(store: RegisteredStore) -> ObjectVersion:
    etag = store.opened().head("x").etag
    return ObjectVersion(store.name, "x", etag, len(DATA))


def brought(*ranges: ByteRange) -> bytes:
    data = bring(ranges, [5] * len(ranges), ahead=False).data
    assert data is not None
    return bytes(data)


def test_it_comes_once(version: ObjectVersion, faulty_server: FaultyServer) -> None:
    wanted = ByteRange(version, BLOCK + 100, 5 * BLOCK + 7)
    assert brought(wanted) == DATA[BLOCK + 100 : 5 * BLOCK + 7]
    asked = len(faulty_server.asked())
    assert brought(wanted) == DATA[BLOCK + 100 : 5 * BLOCK + 7]
    assert brought(ByteRange(version, BLOCK, 6 * BLOCK)) == DATA[BLOCK : 6 * BLOCK]
    assert len(faulty_server.asked()) == asked


@pytest.mark.parametrize("stop", [5 * BLOCK + 7, len(DATA)])
def test_what_leaves_between_the_look_and_the_read_is_fetched_again(
    version: ObjectVersion, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """As where another process needs the room."""
    wanted = ByteRange(version, stop - 3 * BLOCK, stop)
    assert brought(wanted) == DATA[wanted.start : stop]
    read_into = CachedObject.read_into
    misses = [False, False]

    def unlucky(self: CachedObject, start: int, stop: int, out: Any) -> bool:
        if misses:
            return misses.pop()
        return read_into(self, start, stop, out)

    monkeypatch.setattr(CachedObject, "read_into", unlucky)
    assert brought(wanted) == DATA[wanted.start : stop]
    assert not misses
    assert brought(wanted) == DATA[wanted.start : stop]


@pytest.mark.thorough
def test_what_would_push_out_other_blocks_for_a_little_is_read_as_it_is(
    version: ObjectVersion, store: RegisteredStore, faulty_server: FaultyServer
) -> None:
    """Small samples in random order, of which the blocks do not all fit: each block would be read for one of them."""
    samples = [ByteRange(version, at, at + 1000) for at in range(0, len(DATA) - 1000, BLOCK // 4)]
    read = 0
    for epoch in range(3):
        for place in range(len(samples)):
            wanted = samples[place * 37 % len(samples)]
            position = (epoch + 1) * len(samples) + place
            got = bring([wanted], [position], ahead=False)
            assert got.data is not None
            assert bytes(got.data) == DATA[wanted.start : wanted.stop]
            read += got.from_network

    if store.settings.cache.limit is None:
        assert read <= len(DATA)
    else:
        assert LIMIT * 0.8 < read < 1.2 * LIMIT + 3 * 1000 * len(samples)
