"""Where byte ranges come from: the store, or the cache of this node in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.cache import CachedObject
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion
from headrace.storage.stores import registry

ONE_BLOCK = 256 << 10
"""Bytes of an object up to which it is one block of the cache."""

BLOCK = 16 << 10
"""Bytes of a block of larger objects: what is fetched is rounded to it."""

MOST_BLOCKS = 1 << 18
"""Blocks of an object at most: those of larger ones are larger."""


EDGES = 1 / 64
"""The share of a request that may be in the cache and is fetched all the same: to put both together takes memory twice.

Where long ranges follow each other, the block at each edge lies in two of them.
"""

ATTEMPTS = 5
"""How often blocks that others fetch are waited for, before they are fetched again, past the cache."""

MOST_RECENT = 4096
"""Objects in the cache of a store that a process keeps at hand: to find out their names takes longer than a read."""


class Brought(NamedTuple):
    """What a request has brought."""

    data: memoryview | None
    """From the first byte of the ranges to the last, which nobody changes; None: it lies in the cache, and stays."""

    from_network: int
    """How many bytes came from the store; the others were in the cache."""


def bring(ranges: Sequence[ByteRange], next_uses: Sequence[int], *, ahead: bool) -> Brought:
    """Returns the bytes from the first range to the last one, all of one object. Raises `StorageError`.

    next_uses: of each range, when it will be used again behind the use for which it is fetched now. ahead: nobody waits
    for it yet, so that it need not be in memory if the cache keeps it.
    """
    version = ranges[0].object
    cached = cached_object(version)
    start = ranges[0].start
    stop = max(wanted.stop for wanted in ranges)
    if cached is None:
        return Brought(_fetch(version, start, stop), stop - start)

    stays = ahead and registry.keeps_all(version.store)
    if stays and cached.has(start, stop):
        return Brought(None, 0)

    brought = _bring(cached, version, ranges, next_uses)
    if stays and cached.has(start, stop):
        return Brought(None, brought.from_network)
    return brought


def _bring(
    cached: CachedObject, version: ObjectVersion, ranges: Sequence[ByteRange], next_uses: Sequence[int]
) -> Brought:
    start = ranges[0].start
    stop = max(wanted.stop for wanted in ranges)
    low = start // cached.block_size * cached.block_size
    high = min(-(-stop // cached.block_size) * cached.block_size, version.size)
    keeps_all = registry.keeps_all(version.store)
    for _ in range(ATTEMPTS):
        found = _from_cache(cached, start, stop)
        if found is not None:
            _tell(cached, ranges, next_uses)
            return Brought(found, 0)
        # Where blocks of which little is wanted push out each other, each is read whole for a sample or two.
        if (stop - start) * 2 < high - low and not keeps_all and not cached.has_room(low, high):
            break

        claim = cached.claim(low, high)
        if claim is not None:
            with claim:
                return _fill(cached, version, (start, stop), (low, high), ranges, next_uses)
        # Another process of this node, or another thread, fetches some of it: a block may lie in two ranges.
        cached.wait(low, high)

    return Brought(_fetch(version, start, stop), stop - start)


def cached_object(version: ObjectVersion) -> CachedObject | None:
    """Returns the object in the cache of this node; None without a cache, or for one whose versions have no names."""
    store = registry.known(version.store)
    if store is None or version.etag is None or version.size == 0:
        return None
    found = store.recent.get(version)
    if found is not None:
        return found

    cache = store.cache()
    if cache is None:
        return None

    url = registry.location_of(version.store, version.key).url
    found = cache.open_object(url, version.etag, version.size, block_size(version.size))
    if len(store.recent) >= MOST_RECENT:
        store.recent.clear()
    store.recent[version] = found
    return found


def block_size(size: int) -> int:
    """Returns the bytes of a block of an object of so many bytes."""
    if size <= ONE_BLOCK:
        return ONE_BLOCK

    block = BLOCK
    while size > block * MOST_BLOCKS:
        block *= 2
    return block


def _fetch(version: ObjectVersion, start: int, stop: int) -> memoryview:
    return registry.store_named(version.store).read(version.key, start, stop, version.etag)


def _from_cache(cached: CachedObject, start: int, stop: int) -> memoryview | None:
    if not cached.has(start, stop):
        return None
    out = memoryview(bytearray(stop - start))
    if not cached.read_into(start, stop, out):
        return None
    return out


def _fill(
    cached: CachedObject,
    version: ObjectVersion,
    span: tuple[int, int],
    blocks: tuple[int, int],
    ranges: Sequence[ByteRange],
    next_uses: Sequence[int],
) -> Brought:
    """Fetches the blocks that are missing, and keeps them.

    span: the bytes that are wanted. blocks: the whole blocks in which they lie, on which the claim is held.
    """
    start, stop = span
    missing = cached.missing(start, stop)
    if not missing:
        # Another process has fetched it between the look and the claim.
        found = _from_cache(cached, start, stop)
        if found is not None:
            _tell(cached, ranges, next_uses)
            return Brought(found, 0)
        # It was there, and had to make room before it was read.
        missing = [blocks]

    low = missing[0][0]
    high = missing[-1][1]
    if high - low >= (blocks[1] - blocks[0]) * (1 - EDGES):
        low, high = blocks

    data = _fetch(version, low, high)
    if registry.keeps_all(version.store):
        # What lies between the ranges, too: it has come anyway, and is wanted later.
        cached.insert(low, data)
    else:
        for wanted, next_use in zip(ranges, next_uses, strict=True):
            _keep(cached, low, data, wanted, next_use)

    if low <= start and stop <= high:
        return Brought(data[start - low : stop - low], high - low)

    out = memoryview(bytearray(stop - start))
    inside = max(start, low), min(stop, high)
    out[inside[0] - start : inside[1] - start] = data[inside[0] - low : inside[1] - low]
    for first, last in ((start, min(low, stop)), (max(high, start), stop)):
        if first < last and not cached.read_into(first, last, out[first - start : last - start]):
            # It was there a moment ago, and had to make room.
            out[first - start : last - start] = _fetch(version, first, last)

    return Brought(out, high - low)


def _keep(cached: CachedObject, low: int, data: memoryview, wanted: ByteRange, next_use: int) -> None:
    """Inserts the blocks of a range into the cache, as far as they were fetched."""
    block = cached.block_size
    first = max(wanted.start // block * block, low)
    last = min(-(-wanted.stop // block) * block, cached.size, low + len(data))
    if first < last:
        cached.insert(first, data[first - low : last - low], next_use)


def _tell(cached: CachedObject, ranges: Sequence[ByteRange], next_uses: Sequence[int]) -> None:
    for wanted, next_use in zip(ranges, next_uses, strict=True):
        cached.set_next_use(wanted.start, wanted.stop, next_use)
