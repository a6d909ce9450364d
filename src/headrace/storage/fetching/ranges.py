"""Byte ranges of objects, and which of them one request brings. Pure: touches no network, file or clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

GAP = 64 << 10
"""Bytes between two wanted ranges that are rather fetched than asked around: a further request costs more."""

WANTED = 1 / 2
"""The share of a request's bytes that is wanted at least. Small samples in random order lie less than `GAP` apart, and
would bring several times as many bytes as they have."""

FREE = 1 << 10
"""Bytes between two wanted ranges that do not count for that: the headers of a request take as many."""

LARGEST = 8 << 20
"""Bytes that one request brings at most, unless a single range is longer."""


class ObjectVersion(NamedTuple):
    """An object as it was when it was listed: what is read of it must be of this version."""

    store: str
    """The name of its store, see `stores.py`."""
    key: str
    etag: str | None
    size: int
    """In bytes."""


class ByteRange(NamedTuple):
    """Bytes `start` to `stop - 1` of an object."""

    object: ObjectVersion
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.stop - self.start


def cut(data: memoryview, ranges: Sequence[ByteRange]) -> list[memoryview]:
    """Returns the part of each range, of bytes in which ranges lie one behind the other."""
    parts = []
    at = 0
    for wanted in ranges:
        parts.append(data[at : at + wanted.size])
        at += wanted.size

    return parts


class PlannedRead(NamedTuple):
    """What will be read at a position of a plan."""

    position: int
    ranges: Sequence[ByteRange]
    next_uses: Sequence[int] | None = None
    """Of each range, when it will be used again behind that, on a scale that is the same for all of a cache; None:
    nobody knows."""


class WaitingRanges:
    """Ranges that are still to be asked for, by object: finds the neighbours that one request can bring along."""

    def __init__(self) -> None:
        self._by_object: dict[ObjectVersion, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_object.values()))

    def __bool__(self) -> bool:
        # Objects without waiting ranges are not held.
        return bool(self._by_object)

    def add(self, wanted: ByteRange) -> None:
        """Adds a range; one that is there already is not to be added again."""
        insort(self._by_object.setdefault(wanted.object, []), (wanted.start, wanted.stop))

    def remove(self, wanted: ByteRange) -> None:
        """Removes a range. Raises `KeyError` if it is not there."""
        spans = self._by_object[wanted.object]
        place = bisect_left(spans, (wanted.start, wanted.stop))
        if place == len(spans) or spans[place] != (wanted.start, wanted.stop):
            raise KeyError(wanted)

        del spans[place]
        if not spans:
            del self._by_object[wanted.object]

    def take(self, wanted: ByteRange, room: int) -> list[ByteRange]:
        """Removes a range, and with it the neighbours that lie at most `GAP` apart. Returns them in order.

        At least `WANTED` of the bytes that come are of these ranges. room: bytes that the request may bring, from its
        first byte to its last; `LARGEST` at most. The range itself is taken in any case.
        """
        spans = self._by_object[wanted.object]
        place = bisect_left(spans, (wanted.start, wanted.stop))
        limit = min(LARGEST, room)
        wasted = 0
        first = place
        last = place + 1
        start = wanted.start
        stop = wanted.stop

        # Behind it first: what lies there is more often wanted next.
        while last < len(spans) and spans[last][0] - stop <= GAP:
            gap = max(spans[last][0] - stop - FREE, 0)
            reaches = max(stop, spans[last][1])
            size = reaches - start
            if size > limit or wasted + gap > size * (1 - WANTED):
                break
            wasted += gap
            stop = reaches
            last += 1

        # Spans are sorted by where they begin: one before this may reach far into it, which does not matter.
        while first > 0 and start - spans[first - 1][1] <= GAP:
            gap = max(start - spans[first - 1][1] - FREE, 0)
            reaches = max(stop, spans[first - 1][1])
            size = reaches - spans[first - 1][0]
            if size > limit or wasted + gap > size * (1 - WANTED):
                break
            wasted += gap
            first -= 1
            start = spans[first][0]
            stop = reaches

        taken = spans[first:last]
        del spans[first:last]
        if not spans:
            del self._by_object[wanted.object]

        found = []
        for span in taken:
            found.append(ByteRange(wanted.object, *span))

        return found
