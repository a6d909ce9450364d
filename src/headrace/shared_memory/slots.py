"""Which slot next: the bookkeeping of one region, in plain numbers."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator

from headrace.shared_memory.memory import FIRST_CHUNK, LOCK_STEP, Slot

PAGE = max(4096, mmap.PAGESIZE)
PATIENCE = 128
"""A free slot that was not needed during this many allocations gives its pages back."""

KEPT = 16 << 20
"""Bytes of free slots that keep their pages all the same: small batches come and go in bunches."""


def capacity_for(nbytes: int) -> int:
    """Returns the capacity of a slot for `nbytes` bytes: whole pages, at most an eighth more than asked for."""
    step = max(PAGE, 1 << max(nbytes.bit_length() - 4, 0))
    return max(-(-nbytes // step) * step, PAGE)


class SlotPool:
    """Hands out slots of one region and takes them back.

    The slot that was freed last is taken first, because its pages are touched and its cache lines warm. A free slot is
    *warm* while its pages exist and *cold* after `discard` was called for it; it keeps its address for ever.
    Not safe for use by several threads at once.
    """

    def __init__(self, discard: Callable[[Slot], None]) -> None:
        self._discard = discard
        self._warm: dict[int, list[tuple[int, Slot]]] = {}
        self._warm_bytes = 0
        self._cold: dict[int, list[Slot]] = {}
        self._chunk = 0
        self._used = 0
        self._clock = 0

    def adopt(self, free: Iterable[Slot], leased: Iterable[Slot]) -> None:
        """Takes over the slots of an earlier pool of the same region; new ones are cut behind all of them."""
        for slot in free:
            self._cut_behind(slot)
            self.release(slot)
        for slot in leased:
            self._cut_behind(slot)

    def allocate(self, nbytes: int) -> Slot:
        """Returns a free slot of at least `nbytes` bytes."""
        self._clock += 1
        if self._clock % PATIENCE == 0:
            self._cool()

        wanted = capacity_for(nbytes)
        if stack := self._warm.get(wanted):
            self._warm_bytes -= wanted
            return stack.pop()[1]

        for capacity in _fitting(wanted):
            if stack := self._warm.get(capacity):
                self._warm_bytes -= capacity
                return stack.pop()[1]

        for capacity in _fitting(wanted):
            if cold := self._cold.get(capacity):
                return cold.pop()

        return self._cut(wanted)

    def release(self, slot: Slot) -> None:
        """Takes a slot back. Nobody may read or write it any more."""
        self._warm.setdefault(slot.capacity, []).append((self._clock, slot))
        self._warm_bytes += slot.capacity

    def _cut(self, capacity: int) -> Slot:
        if self._used % LOCK_STEP + capacity > LOCK_STEP:
            self._used = -(-self._used // LOCK_STEP) * LOCK_STEP
        while self._used + capacity > FIRST_CHUNK << self._chunk:
            self._chunk += 1
            self._used = 0

        slot = Slot(self._chunk, self._used, capacity)
        self._used += capacity
        return slot

    def _cut_behind(self, slot: Slot) -> None:
        end = slot.offset + slot.capacity
        self._chunk, self._used = max((self._chunk, self._used), (slot.chunk, end))

    def _cool(self) -> None:
        """Gives back the pages of slots that nobody wanted for a while: the oldest lie at the bottom of each stack."""
        for capacity, stack in self._warm.items():
            stale = 0
            while stale < len(stack) and self._clock - stack[stale][0] > PATIENCE and self._warm_bytes > KEPT:
                stale += 1
                self._warm_bytes -= capacity
            for _, slot in stack[:stale]:
                self._discard(slot)
                self._cold.setdefault(capacity, []).append(slot)
            del stack[:stale]


def _fitting(capacity: int) -> Iterator[int]:
    """Yields the capacities from `capacity` up to twice as much, in ascending order."""
    limit = 2 * capacity
    while capacity <= limit:
        yield capacity
        capacity = capacity_for(capacity + 1)
