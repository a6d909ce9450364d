"""Which objects leave the cache: Belady's MIN, with bypass. Numbers in, decisions out; nothing here does I/O.

The loader knows its order, so a block's *next use* is known: the position, in the order of this job, at which the block
is read next. Blocks leave with their object, whose next use is the nearest of theirs. The object whose next use is
farthest leaves first. A new block whose next use is farther than that of all objects is not stored at all. For objects
of one block, all of one size, no other rule makes more hits.

Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer",
IBM Systems Journal 5(2), 1966.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

NEVER = (1 << 63) - 1
"""The next use of a block of which none is known."""

Key = TypeVar("Key", bound=Hashable)


class BlockUses:
    """The blocks of an object, each with its size in bytes and its next use. Not safe for several threads at once."""

    __slots__ = ("_blocks", "_heap", "nbytes")

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[int, int]] = {}
        # The nearest next use lies first. Outdated entries are dropped when they come to the front.
        self._heap: list[tuple[int, int]] = []
        self.nbytes = 0
        """The bytes of all blocks."""

    def set(self, number: int, nbytes: int, next_use: int) -> None:
        """Adds a block, or changes its next use."""
        if self._blocks.get(number) == (nbytes, next_use):
            return
        self.remove(number)
        self._blocks[number] = (nbytes, next_use)
        self.nbytes += nbytes
        heapq.heappush(self._heap, (next_use, number))
        if len(self._heap) > 2 * len(self._blocks) + 8:
            self._heap = [(known[1], number) for number, known in self._blocks.items()]
            heapq.heapify(self._heap)

    def remove(self, number: int) -> None:
        """Removes a block, if it is known."""
        known = self._blocks.pop(number, None)
        if known is not None:
            self.nbytes -= known[0]

    def nearest(self) -> int:
        """Returns the nearest next use of all blocks; `NEVER` if none is known."""
        while self._heap:
            next_use, number = self._heap[0]
            known = self._blocks.get(number)
            if known is not None and known[1] == next_use:
                return next_use
            heapq.heappop(self._heap)
        return NEVER


class NextUses(Generic[Key]):
    """The objects that may leave, each with its size in bytes and its next use. Not safe for several threads at once.

    `set` and `remove` take O(log n); `victims` O(log n) for each object that it returns.
    """

    def __init__(self) -> None:
        self._objects: dict[Key, tuple[int, int]] = {}
        # The farthest next use lies first, and of equal ones the object that was set first. An entry holds as long as
        # its serial number is the one in `_serials`: outdated ones are dropped when they come to the front.
        self._heap: list[tuple[int, int, Key]] = []
        self._serials: dict[Key, int] = {}
        self._serial = 0
        self.nbytes = 0
        """The bytes of all objects."""

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: object) -> bool:
        return key in self._objects

    def set(self, key: Key, nbytes: int, next_use: int) -> None:
        """Adds an object, or changes its next use."""
        known = self._objects.get(key)
        if known == (nbytes, next_use):
            return
        if known is not None:
            self.nbytes -= known[0]

        self._serial += 1
        self._objects[key] = (nbytes, next_use)
        self._serials[key] = self._serial
        self.nbytes += nbytes
        heapq.heappush(self._heap, (-next_use, self._serial, key))
        if len(self._heap) > 2 * len(self._objects) + 64:
            self._rebuild()

    def remove(self, key: Key) -> None:
        """Removes an object, if it is known."""
        known = self._objects.pop(key, None)
        if known is not None:
            self.nbytes -= known[0]
            del self._serials[key]

    def victims(self, needed: int, next_use: int) -> list[Key] | None:
        """Returns the objects that leave for a new block, farthest first; they stay known until `remove`.

        needed: bytes that must become free; if all objects together have fewer, all are returned. next_use: of the new
        block. None: the new block shall not be stored, because objects would leave that are used before it, or at the
        same position.
        """
        freed = 0
        taken: list[tuple[int, int, Key]] = []
        while freed < needed and self._heap:
            entry = self._heap[0]
            negative, serial, key = entry
            if self._serials.get(key) != serial:
                heapq.heappop(self._heap)
                continue
            if -negative <= next_use:
                break
            taken.append(heapq.heappop(self._heap))
            freed += self._objects[key][0]

        for entry in taken:
            heapq.heappush(self._heap, entry)
        if freed < needed and len(taken) < len(self._objects):
            return None
        return [key for _, _, key in taken]

    def _rebuild(self) -> None:
        self._heap = [entry for entry in self._heap if self._serials.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
