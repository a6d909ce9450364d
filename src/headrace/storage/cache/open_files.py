"""Descriptors of a process that close when nobody uses them any more, and that a forked child gives up."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.storage.cache.layout import ABSENT, ENTRY, Shape

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_OPEN = 64

AT_ONCE = 512
"""Entries of a table that are read at a time."""


class OpenFile:
    """A descriptor. It is closed when the last reference to this object is gone: a thread that reads keeps one."""

    __slots__ = ("__weakref__", "fd", "sound")

    def __init__(self, fd: int, blocks: int = 0) -> None:
        self.fd = fd
        self.sound = bytearray(blocks)
        """Per block 1 if this process has seen that it is there, and right."""

    def entries(self, shape: Shape, blocks: range) -> list[tuple[int, int]]:
        """Returns CRC and mark of blocks; of those behind the end of a file that was cut (0, 0)."""
        size = ENTRY.size * len(blocks)
        found = os.pread(self.fd, size, shape.table_start + ENTRY.size * blocks.start)
        return list(ENTRY.iter_unpack(found.ljust(size, b"\0")))

    def entry(self, shape: Shape, number: int) -> tuple[int, int]:
        """Returns CRC and mark of a block."""
        return self.entries(shape, range(number, number + 1))[0]

    def is_empty(self, shape: Shape) -> bool:
        """Tells whether no block is present. Looks no further than to the first that is: a table may be megabytes."""
        for first in range(0, shape.blocks, AT_ONCE):
            blocks = range(first, min(first + AT_ONCE, shape.blocks))
            if any(mark != ABSENT for _, mark in self.entries(shape, blocks)):
                return False
        return True

    def write_entry(self, shape: Shape, number: int, crc: int, mark: int) -> None:
        """Writes CRC and mark of a block."""
        self.write_entries(shape, number, [(crc, mark)])

    def write_entries(self, shape: Shape, first: int, entries: Sequence[tuple[int, int]]) -> None:
        """Writes CRC and mark of neighbouring blocks."""
        packed = b"".join(ENTRY.pack(crc, mark) for crc, mark in entries)
        os.pwrite(self.fd, packed, shape.table_start + ENTRY.size * first)

    def read_fully(self, out: Buffer, length: int, position: int) -> bool:
        """Reads `length` bytes into `out`; returns False if the file ends before."""
        count = os.preadv(self.fd, (out,), position)
        if count == length:
            return True

        view = memoryview(out).cast("B")[:length]
        while 0 < count < length:
            more = os.preadv(self.fd, (view[count:],), position + count)
            if not more:
                return False
            count += more
        return count >= length

    def write_fully(self, data: memoryview, position: int) -> None:
        """Writes bytes."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.fd, data[written:], position + written)

    def is_linked(self) -> bool:
        """Tells whether the file still has a name: nobody finds what is written into one that was removed."""
        return os.fstat(self.fd).st_nlink > 0

    def close(self) -> None:
        """Closes the descriptor now; also called in a forked child, whose copies would keep locks of the parent."""
        fd = self.fd
        self.fd = -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OpenFiles:
    """The files that a process has open, by name; those that were used last stay open."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, OpenFile] = OrderedDict()
        self._all: weakref.WeakSet[OpenFile] = weakref.WeakSet()
        self._lock = threading.Lock()

    def get(self, name: str, opener: Callable[[], OpenFile]) -> OpenFile:
        """Returns an open file, from `opener` if there is none."""
        with self._lock:
            file = self._recent.get(name)
            if file is not None:
                self._recent.move_to_end(name)
                return file

        opened = opener()
        with self._lock:
            self._recent[name] = opened
            while len(self._recent) > MOST_OPEN:
                self._recent.popitem(last=False)
        return opened

    def adopt(self, file: OpenFile) -> OpenFile:
        """Has a file that is open already closed in forked children."""
        self._all.add(file)
        return file

    def drop(self, name: str, file: OpenFile) -> None:
        """Forgets an open file, if it is the one that is known by this name."""
        with self._lock:
            if self._recent.get(name) is file:
                del self._recent[name]

    def close_copies(self) -> None:
        """Is called in a forked child, and when the cache is closed: closes all of them."""
        self._lock = threading.Lock()
        self._recent.clear()
        for file in list(self._all):
            file.close()
        self._all = weakref.WeakSet()
