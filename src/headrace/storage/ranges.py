"""Byte ranges of objects, and which of them one request brings. Pure: touches no network, file or clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

GAP = 64 << 10
"""Bytes between two wanted ranges that are rather fetched than asked around: a further request costs more."""

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


class Waiting:
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

        room: bytes that the request may bring, from its first byte to its last; `LARGEST` at most. The range itself is
        taken in any case.
        """
        spans = self._by_object[wanted.object]
        place = bisect_left(spans, (wanted.start, wanted.stop))
        limit = min(LARGEST, room)
        first = place
        last = place + 1
        start = wanted.start
        stop = wanted.stop

        # Behind it first: what lies there is more often wanted next.
        while last < len(spans) and spans[last][0] - stop <= GAP:
            reaches = max(stop, spans[last][1])
            if reaches - start > limit:
                break
            stop = reaches
            last += 1

        # Spans are sorted by where they begin: one before this may reach far into it, which does not matter.
        while first > 0 and start - spans[first - 1][1] <= GAP:
            if max(stop, spans[first - 1][1]) - spans[first - 1][0] > limit:
                break
            first -= 1
            start = spans[first][0]
            stop = max(stop, spans[first][1])

        taken = spans[first:last]
        del spans[first:last]
        if not spans:
            del self._by_object[wanted.object]

        found = []
        for span in taken:
            found.append(ByteRange(wanted.object, *span))

        return found
