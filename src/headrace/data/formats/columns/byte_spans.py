"""Which byte ranges bring some spans of files, and where each span lies in the bytes that they bring.

An address counts the bytes of all files of a dataset, one file behind the other with a byte between them, so that the
end of a file never touches the beginning of the next one.

Spans of `ALONE` bytes or more are ranges of their own. Shorter ones are read in blocks: each array is cut into blocks
of about `BLOCK` bytes, the same for everybody. So samples that are near each other share a range, in a batch and
between the batches that were announced. The trade-off: 64 random ranges from nginx on the same machine took 12.0 ms
for 100 bytes each, 10.9 ms for 16 KiB and 13.9 ms for 64 KiB. A block of 16 KiB costs what a row alone costs, and on a
line of 1 Gbit/s the 4 MiB of the larger blocks would take 34 ms. It is also the block of the cache of a node.
"""

from __future__ import annotations

import numpy as np

from headrace.core.ragged import Array, Keys
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.remote_files import RemoteFiles

ALONE = 1 << 10
"""Bytes of a span from which on it is a range of its own."""

BLOCK = 16 << 10
"""Bytes of a block in which shorter spans are read, about."""

TOGETHER = 8
"""Blocks in a row above which they are one range: a long run is not shared with the next batch, but for its ends."""

PART = 4 << 20
"""Bytes of a range at most: longer ones are cut, so that several requests bring them at the same time."""


class Addresses:
    """The bytes of several files, as one row of addresses."""

    def __init__(self, files: RemoteFiles) -> None:
        self._files = files
        self._bases = np.zeros(len(files) + 1, np.int64)
        np.cumsum(files.sizes + 1, out=self._bases[1:])

    def of(self, file: int | Array, byte: int | Array) -> Keys:
        """Returns the addresses of bytes, each given as the number of its file and its place there."""
        found: Keys = np.asarray(self._bases[file] + byte, np.int64)
        return found

    def ranges(self, starts: Keys, stops: Keys) -> list[ByteRange]:
        """Returns ranges from addresses to addresses, each within one file. Those above `PART` bytes are cut."""
        files = np.searchsorted(self._bases, starts, "right") - 1
        bases = self._bases[files]
        found = []
        number = -1
        for file, start, stop in zip(files.tolist(), (starts - bases).tolist(), (stops - bases).tolist(), strict=True):
            if file != number:
                number = file
                version = self._files.version(file)
            for first in range(start, stop, PART):
                found.append(ByteRange(version, first, min(first + PART, stop)))

        return found


class Units:
    """Parts of files that are read: ascending, apart from each other or touching. What they bring lies end to end."""

    def __init__(self, starts: Keys, stops: Keys, *, together: bool) -> None:
        """starts, stops: addresses. together: whether only long runs of units that touch are read as one range."""
        self._starts = starts
        self._stops = stops
        self._together = together
        self._at = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(stops - starts, out=self._at[1:])

    @property
    def nbytes(self) -> int:
        """How many bytes are read."""
        return int(self._at[-1])

    def ranges(self, addresses: Addresses) -> list[ByteRange]:
        """Returns what to ask for, in order."""
        starts = self._starts
        stops = self._stops
        if self._together and len(starts) > TOGETHER:
            # The first unit of each run of units that touch, and the end of the last run.
            firsts = np.flatnonzero(np.append(True, starts[1:] != stops[:-1]))
            edges = np.append(firsts, len(starts))
            long = np.repeat(np.diff(edges) > TOGETHER, np.diff(edges))
            begins = ~long
            begins[firsts] = True
            ends = ~long
            ends[edges[1:] - 1] = True
            starts = starts[begins]
            stops = stops[ends]

        return addresses.ranges(starts, stops)

    def places(self, addresses: Keys) -> Keys:
        """Returns where the bytes at addresses, all of which are read, lie in what is read."""
        units = np.searchsorted(self._starts, addresses, "right") - 1
        places: Keys = self._at[units] + addresses - self._starts[units]
        return places


def exact_units(starts: Keys, stops: Keys) -> Units:
    """Returns spans as they are; those that touch or overlap become one. starts, stops: addresses, in any order."""
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    # How far the spans up to each one reach: overlapping windows need not end in the order in which they begin.
    reach = np.maximum.accumulate(stops[order])
    firsts = np.flatnonzero(np.append(True, starts[1:] > reach[:-1])[: len(starts)])
    lasts = np.append(firsts[1:], len(starts))[: len(firsts)] - 1
    return Units(starts[firsts], reach[lasts], together=False)


def block_units(starts: Keys, stops: Keys, origins: Keys, ends: Keys, size: int) -> Units:
    """Returns the blocks in which spans lie. starts, stops: addresses, in any order; no span is empty.

    origins, ends: where the piece of an array begins and ends in which each span lies. size: bytes of a block.
    """
    first = (starts - origins) // size
    count = -(-(stops - origins) // size) - first
    spans = np.repeat(np.arange(len(starts)), count)
    # Each span's blocks, counted on from its first.
    steps = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    begins = origins[spans] + (first[spans] + steps) * size
    begins, chosen = np.unique(begins, return_index=True)
    return Units(begins, np.minimum(begins + size, ends[spans[chosen]]), together=True)


def block_bytes(element: int) -> int:
    """Returns the bytes of a block of an array whose elements have so many: a whole number of elements."""
    return max(BLOCK // element, 1) * element
