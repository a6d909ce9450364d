"""Page-locked slots: the accelerator reads them by itself, later than it was asked to.

What is locked is the reader's mapping of a chunk, from its beginning to the end of the last slot that has come: one
range after the other, each of which ends where a slot ends, since no copy may reach from one range into another. So the
pages exist already when they are locked, and as many are locked as are used.

Three rules follow from reading later:

- A slot whose lease has ended is written again only when the device has done what it was asked for: `SlotsInFlight`.
- The pages of a locked range are never given back to the machine: the device would go on reading the old ones.
- A range is unlocked before its memory is unmapped, since the next mapping may get the same address.
"""

from __future__ import annotations

import bisect
import mmap
import os
import sys
from typing import NamedTuple

import numpy as np

from headrace.core.accelerator import Accelerator
from headrace.core.text.log_once import warn_once

_outlasting: list[mmap.mmap] = []
"""Mappings that could not be unlocked when they went: they stay mapped until the process ends."""


class LockedRange(NamedTuple):
    """A range of addresses that is page-locked: [start, stop)."""

    start: int
    stop: int


class PageLock:
    """Locks memory of this process for an accelerator. Once that was refused, it locks no more."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.refused = False
        self._ranges: list[LockedRange] = []
        self._begun: set[LockedRange] = set()
        """Ranges of which it is not certain whether they are locked: a signal handler may have raised meanwhile."""

    def lock(self, wanted: LockedRange) -> bool:
        """Locks a range of whole pages. False: it was refused, which is said once."""
        if self.has(wanted):
            return True
        if self.refused:
            return False

        if wanted in self._begun:
            self.accelerator.unregister(wanted.start)
        self._begun.add(wanted)
        if not self.accelerator.register(wanted.start, wanted.stop - wanted.start):
            self._begun.discard(wanted)
            self.refused = True
            warn_once(
                "page-locking",
                "the accelerator cannot read the memory of batches by itself: locking "
                f"{(wanted.stop - wanted.start) >> 10} KiB of it was refused. Batches are copied to memory that torch "
                "has pinned instead, which takes longer. Containers limit such memory: allow more "
                "(`ulimit -l unlimited`, `--ulimit memlock=-1`).",
            )
            return False

        bisect.insort(self._ranges, wanted)
        self._begun.discard(wanted)
        return True

    def has(self, found: LockedRange) -> bool:
        """Tells whether this very range is locked."""
        return self.range_of(found.start, found.stop - found.start) == found

    def unlock(self, found: LockedRange) -> None:
        """Unlocks a range, if it is locked. No copy of it may be under way."""
        if self.has(found):
            self._ranges.remove(found)
            self._begun.add(found)
        if found in self._begun:
            self.accelerator.unregister(found.start)
            self._begun.discard(found)

    def range_of(self, address: int, nbytes: int) -> LockedRange | None:
        """Returns the range that holds all of these bytes; None: not all of them are locked, or not in one range."""
        place = bisect.bisect_right(self._ranges, (address, sys.maxsize)) - 1
        if place < 0:
            return None
        found = self._ranges[place]
        if address + nbytes > found.stop:
            return None
        return found


class LockableMapping(mmap.mmap):
    """Memory of this process whose beginning may be page-locked. What is locked is unlocked before it is unmapped."""

    _lock: PageLock | None = None
    _ranges: tuple[LockedRange, ...] = ()
    _pid = 0
    # Kept here, since the names of a module may be gone when Python exits.
    _getpid = staticmethod(os.getpid)
    _exits = staticmethod(sys.is_finalizing)

    def lock_up_to(self, end: int, lock: PageLock) -> bool:
        """Has the first `end` bytes be page-locked. False: some of them are not."""
        start = np.frombuffer(self, np.uint8).__array_interface__["data"][0]
        begin = self._ranges[-1].stop if self._ranges else start
        # Noted before it is locked, since a signal handler may raise meanwhile: what is noted is unlocked at the end.
        if start + end > begin:
            self._lock = lock
            self._pid = os.getpid()
            self._ranges = (*self._ranges, LockedRange(begin, start + end))
        return lock.lock(self._ranges[-1])

    def __del__(self) -> None:
        # In a forked child, the ranges are the parent's. When the process ends, the driver sees to them.
        if not self._ranges or self._lock is None or self._exits() or self._pid != self._getpid():
            return

        # Copies may be under way although the last lease has ended.
        event = self._lock.accelerator.event()
        if event is None:
            _outlasting.append(self)
            return

        event.synchronize()
        for found in self._ranges:
            self._lock.unlock(found)
