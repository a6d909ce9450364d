"""How many bytes a cache uses: one number, which all its processes change.

Bytes are counted before they are written, and counted as free when their file is gone. So a killed process leaves bytes
that are counted and nowhere; a *recount* of the files corrects the number while the cache is in use.

A recount takes a while, and must not meet bytes on their way: those that are counted and not yet written, and those
that have left their file and are still counted. A process holds a shared lock while it has any, and whoever begins to
move bytes cancels the recount that is going on. So one that was neither refused nor cancelled has met nothing but files
that stayed as they were:

    a process that moves bytes       a process that counts
    take the shared lock             write the number of the recount
    read that number                 try the lock exclusively
    if there is one: set it to 0     if it is taken: give up
    ...                              look at the files
    release the lock                 if the number is still its own: write what was counted

What the others have counted ahead is not among the files. A correction leaves it out, and they see by the number of
corrections that it is no longer counted.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from headrace.core.files.file_lock import NoLocks, lock_range, unlock_range
from headrace.storage.cache.marker import NUMBER, NUMBERS, RECORD, RECOUNT, USED
from headrace.storage.cache.open_files import OpenFile

AHEAD = 8 << 20
"""Bytes that a process counts as used ahead, at most: a thousandth of the limit, or a hundredth of what is used."""

PATIENCE = 0.5
"""Seconds that a recount waits at most for others to have no bytes on their way."""


class Counted(NamedTuple):
    """What the record says."""

    used: int
    """Bytes that all processes have counted, some of them ahead."""
    recount: int
    """The number of the recount that is going on; 0: none."""
    corrections: int
    """How many recounts have corrected the bytes."""


class ByteCount:
    """The bytes in use, as one process counts them. Several threads may use it. Raises nothing of its own.

    A forked child makes one for itself: what its parent has counted ahead or has on the way is the parent's.
    """

    def __init__(self, marker: OpenFile | None, limit: int | None, *, writable: bool) -> None:
        self.limit = limit
        self.writable = writable and marker is not None
        self._marker = marker
        self._lock = threading.Lock()
        self._locks_ranges = True
        # Bytes that this process has counted as used and does not use yet. To count each block by itself, threads would
        # queue up: it takes four calls of the system, and no other process may count meanwhile.
        self._ahead = 0
        self._most_ahead = 0
        if limit is not None:
            self._most_ahead = min(AHEAD, limit // 1000)
        self._moving = 0
        """Bytes on their way into files or out of them."""
        self._corrections = 0
        """How many there had been when bytes were counted ahead."""

    def used(self) -> int:
        """Returns the bytes in use, without what this process has counted ahead."""
        record = self._read()
        used = record.used
        if record.corrections == self._corrections:
            used -= self._ahead
        return max(used, 0)

    # -- bytes on their way ------------------------------------------------------------------------------------------

    def reserve(self, nbytes: int) -> bool:
        """Counts bytes as used if the limit has room for them, and returns whether that was so.

        They are on their way until `stored` or `release`.
        """
        with self._lock:
            return self._reserve(nbytes, self.limit)

    def add(self, nbytes: int) -> None:
        """Counts bytes as used, also above the limit. They are on their way until `stored` or `release`."""
        with self._lock:
            if not self._reserve(nbytes, self.limit):
                self._reserve(nbytes, None)

    def stored(self, nbytes: int) -> None:
        """Says that bytes on their way lie in files now."""
        with self._lock:
            self._end(nbytes)

    def release(self, nbytes: int) -> None:
        """Counts bytes on their way as free."""
        with self._lock:
            self._end(nbytes)
            self._ahead += nbytes
            if self._ahead > 2 * self._most_ahead:
                self._give_back(self._ahead - self._most_ahead)

    @contextlib.contextmanager
    def removing(self, nbytes: int) -> Iterator[None]:
        """Counts bytes as free at the end of the block, in which they leave their file; not if it raises."""
        with self._lock:
            self._begin(nbytes)
            if not self._is_undisturbed(None):
                with self._counting() as record:
                    self._cancel(record.recount)
        try:
            yield
        except BaseException:
            self.stored(nbytes)
            raise
        self.release(nbytes)

    def _reserve(self, nbytes: int, limit: int | None) -> bool:
        if nbytes <= self._ahead:
            self._begin(nbytes)
            if self._is_undisturbed(limit):
                self._ahead -= nbytes
                return True
            self._end(nbytes)

        with self._counting() as record:
            # What `add` has counted above the limit may be counted ahead now, and gives no room.
            is_above = limit is not None and record.used > limit
            # Who finds no room cancels nothing: a recount may be what makes room.
            if (nbytes > self._ahead or is_above) and not self._count_ahead(record.used, nbytes, limit):
                return False
            self._begin(nbytes)
            self._cancel(record.recount)
            self._ahead -= nbytes
            return True

    def _begin(self, nbytes: int) -> None:
        """Has bytes on their way. Behind it the caller looks whether a recount is going on."""
        if nbytes and not self._moving and self._can_lock():
            try:
                # Who counts has it exclusively for a moment.
                lock_range(self._fd, RECOUNT, 1, exclusive=False, wait=True)
            except NoLocks:
                self._locks_ranges = False
        self._moving += nbytes

    def _end(self, nbytes: int) -> None:
        self._moving -= nbytes
        if nbytes and not self._moving and self._can_lock():
            unlock_range(self._fd, RECOUNT, 1)

    def _is_undisturbed(self, limit: int | None) -> bool:
        """Tells whether no recount is going on, none has corrected what is counted ahead, and the limit is kept."""
        record = self._read()
        is_right = not record.recount and record.corrections == self._corrections
        return is_right and (limit is None or record.used <= limit)

    # -- recounts ----------------------------------------------------------------------------------------------------

    def begin_recount(self, *, patient: bool = False) -> int:
        """Returns the number of a recount for `end_recount`; 0 if bytes are on their way.

        patient: waits a moment for other processes, also for one that was killed just now and still holds its lock.
        """
        end = time.monotonic()
        if patient:
            end += PATIENCE
        while True:
            number = self._begun_recount()
            if number or time.monotonic() >= end:
                return number
            time.sleep(PATIENCE / 50)

    def _begun_recount(self) -> int:
        with self._lock, self._counting():
            if self._moving or not self.writable:
                return 0
            number = random.SystemRandom().randrange(1, 1 << 63)
            self._write_recount(number, self._corrections)
            if not self._nothing_moves():
                self._cancel(number)
                return 0
            return number

    def end_recount(self, number: int, counted: int) -> None:
        """Sets the bytes in use to what was counted, unless bytes have been on their way since the recount began."""
        with self._lock, self._counting() as record:
            if number and record.recount == number:
                # In this order: a process that is killed in between leaves a number that is too high.
                self._corrections += 1
                self._write_recount(0, self._corrections)
                self._write_used(counted + self._ahead)

    def _cancel(self, recount: int) -> None:
        """Cancels the recount of this number, if it is one. Called while no other process changes the record."""
        if recount:
            self._write_recount(0, self._corrections)

    def _nothing_moves(self) -> bool:
        """Tells whether no other process has bytes on their way; on a file system without locks it says yes."""
        if not self._can_lock():
            return True
        try:
            free = lock_range(self._fd, RECOUNT, 1)
        except NoLocks:
            self._locks_ranges = False
            return True
        if free:
            unlock_range(self._fd, RECOUNT, 1)
        return free

    # -- the number --------------------------------------------------------------------------------------------------

    def _count_ahead(self, counted: int, nbytes: int, limit: int | None) -> bool:
        """Has at least so many bytes counted ahead, some more if there is room. Returns False if the limit has none.

        counted: what the record says.
        """
        used = counted - self._ahead
        if self.limit is None:
            self._most_ahead = min(AHEAD, used // 100)
        # Nothing is counted ahead above the limit of the cache: what has room by that would be stored unasked.
        if self.limit is None or used + nbytes + self._most_ahead <= self.limit:
            self._ahead = nbytes + self._most_ahead
        elif limit is None or used + nbytes <= limit:
            self._ahead = nbytes
        else:
            return False
        self._write_used(used + self._ahead)
        return True

    def _give_back(self, nbytes: int) -> None:
        """Counts bytes as free that were counted ahead."""
        with self._counting() as record:
            nbytes = min(nbytes, self._ahead)
            self._write_used(max(record.used - nbytes, 0))
            self._ahead -= nbytes

    def close(self) -> None:
        """Counts as free what was counted ahead."""
        if self._ahead and self._fd >= 0:
            self._give_back(self._ahead)

    def _read(self) -> Counted:
        try:
            found = os.pread(self._fd, RECORD.size, 0)
        except OSError:
            return Counted(0, 0, 0)
        _, used, _, _, _, recount, corrections = RECORD.unpack(found.ljust(RECORD.size, b"\0"))
        return Counted(used, recount, corrections)

    def _write_used(self, used: int) -> None:
        self._write(NUMBER.pack(used), USED)

    def _write_recount(self, number: int, corrections: int) -> None:
        self._write(NUMBERS.pack(number, corrections), RECOUNT)

    def _write(self, data: bytes, position: int) -> None:
        if self.writable:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, data, position)

    @property
    def _fd(self) -> int:
        """The descriptor of the marker; -1 if there is none, or it is closed."""
        if self._marker is None:
            return -1
        return self._marker.fd

    def _can_lock(self) -> bool:
        return self.writable and self._locks_ranges and self._fd >= 0

    @contextlib.contextmanager
    def _counting(self) -> Iterator[Counted]:
        """Has one process at a time change the record; it is held for microseconds, and released by a death."""
        locked = False
        if self._can_lock():
            try:
                locked = lock_range(self._fd, USED, 8, wait=True)
            except NoLocks:
                self._locks_ranges = False
        try:
            record = self._read()
            if record.corrections != self._corrections:
                self._corrections = record.corrections
                self._ahead = 0
            yield record
        finally:
            if locked:
                unlock_range(self._fd, USED, 8)
