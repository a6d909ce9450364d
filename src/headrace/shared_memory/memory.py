"""Where batches live: regions of memory, cut into chunks, cut into slots.

A *region* has one writer: a worker process, or the parent itself. Its memory is a row of *chunks*, each twice as large
as the one before, mapped when they are first needed; so the number of mappings grows with the logarithm of the memory,
and a position is fully named by (chunk, offset). A *slot* is a piece of a chunk that holds one buffer of one batch.

Shared regions lie in one sparse file without a name (`memfd_create`; elsewhere a temporary file that is unlinked at
once). Its size is address space only: pages exist from their first touch on. It is not under `/dev/shm`, so a container
with 64 KB of that works, and the kernel frees it with the last process that maps it, however that process ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from multiprocessing import reduction
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.errors import TransportError, explain
from headrace.core.process.descriptors import close_with, nameless_file
from headrace.shared_memory.page_lock import LockableMapping, PageLock

if sys.platform != "win32":
    import resource

FIRST_CHUNK = 64 << 20
"""Bytes of chunk 0; chunk k has `FIRST_CHUNK << k`."""

REGION_SPAN = 1 << 42
"""Bytes of the file that belong to one region, unless file sizes are limited: address space, not memory."""

LOCK_STEP = 256 << 10
"""Bytes. Memory is page-locked up to a multiple of it, which no slot crosses unless it begins at one."""

MADV_POPULATE_WRITE = 23
"""Linux's number for it; Python's mmap has no name for it yet."""

Bytes = npt.NDArray[np.uint8]


class Slot(NamedTuple):
    """A piece of a region: its chunk, its offset in the chunk in bytes, and how many bytes it holds."""

    chunk: int
    offset: int
    capacity: int


def address_of(array: Bytes) -> int:
    """Returns the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]  # `ctypes.data` takes three times as long
    return address


class Backing(Protocol):
    """Gives the pages of chunks and takes them back."""

    def map(self, region: int, chunk: int) -> LockableMapping:
        """Maps a chunk, readable and writable. Raises `TransportError` where the machine has no address space left."""

    def discard(self, mapping: mmap.mmap, start: int, length: int) -> None:
        """Gives the pages of [start, start + length) back to the machine; they read as zeros afterwards."""


class AnonymousBacking:
    """Pages of this process, for engines without worker processes: private ones, or shared with forked children."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared

    def map(self, region: int, chunk: int) -> LockableMapping:
        try:
            if sys.platform == "win32":
                return LockableMapping(-1, FIRST_CHUNK << chunk)
            kind = mmap.MAP_SHARED if self._shared else mmap.MAP_PRIVATE
            return LockableMapping(-1, FIRST_CHUNK << chunk, flags=kind | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError) as error:
            raise _no_memory(FIRST_CHUNK << chunk, error) from error

    def discard(self, mapping: mmap.mmap, start: int, length: int) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED, start, length)


class FileBacking:
    """Pages of one sparse file without a name, shared by every process that has its descriptor.

    Owns the descriptor `fd` and closes it when collected; mappings outlive it. It can be pickled while a process is
    being started, as multiprocessing's own queues can; the new process gets a descriptor of its own.
    """

    def __init__(self, fd: int, span: int = REGION_SPAN) -> None:
        """Takes over a descriptor. `span`: bytes of the file that belong to one region."""
        self.fd = fd
        self.span = span
        close_with(self, fd)

    @classmethod
    def create(cls) -> FileBacking:
        """Makes a new, empty file. Raises `TransportError` where none can be made.

        Where file sizes are limited to less than `REGION_SPAN`, the file has room for one region of that size.
        """
        try:
            return cls(nameless_file("batches"), min(largest_file(), REGION_SPAN))
        except OSError as error:
            raise TransportError.about(
                "cannot create shared memory for batches",
                place="memfd_create",
                found=error,
                expected="a free file descriptor",
                fix="raise `ulimit -n`, or use num_workers=0",
            ) from error

    def __reduce__(self) -> Any:
        return _received_backing, (reduction.DupFd(self.fd), self.span)

    def has_room_for(self, regions: int) -> bool:
        """Whether so many regions may lie in this file."""
        return regions * self.span <= largest_file()

    def reserve(self, regions: int) -> None:
        """Makes the file long enough for `regions` regions. It takes no memory."""
        try:
            if os.fstat(self.fd).st_size < regions * self.span:
                os.ftruncate(self.fd, regions * self.span)
        except OSError as error:
            raise TransportError.about(
                "cannot reserve address space for batches",
                found=error,
                expected=f"a sparse file of {regions * self.span >> 20} MiB may be made (it takes no memory)",
                fix="lift the limit on file sizes (`ulimit -f unlimited`), or use num_workers=0",
            ) from error

    def map(self, region: int, chunk: int) -> LockableMapping:
        size = FIRST_CHUNK << chunk
        start = size - FIRST_CHUNK
        # Where file sizes are limited, the last chunk of a region may be cut short.
        room = self.span - start
        if room <= 0:
            raise _no_room()

        try:
            return LockableMapping(self.fd, min(size, room), offset=region * self.span + start)
        except (OSError, ValueError) as error:
            raise _no_memory(size, error) from error

    def discard(self, mapping: mmap.mmap, start: int, length: int) -> None:
        if hasattr(mmap, "MADV_REMOVE"):
            mapping.madvise(mmap.MADV_REMOVE, start, length)


class Region:
    """The chunks of one writer, mapped into this process one by one as they are needed."""

    def __init__(self, backing: Backing, index: int) -> None:
        self.backing = backing
        self.index = index
        self.keeps_pages = False
        """Whether no pages go back to the machine, since a device may read them."""
        self._chunks: dict[int, LockableMapping] = {}

    def view(self, slot: Slot, nbytes: int) -> Bytes:
        """Returns the first `nbytes` bytes of a slot as an array of its own, shape (nbytes,), writable.

        The array aliases the slot and keeps the mapping alive; it is not a view of any other array, so whatever is
        built over it keeps this very object alive. Raises `TransportError` where a limit on file sizes leaves no room.
        """
        mapping = self._chunk(slot.chunk)
        try:
            return np.frombuffer(mapping, np.uint8, nbytes, slot.offset)
        except ValueError as error:
            # The slot lies beyond the end of a chunk that was cut short.
            raise _no_room() from error

    def populate(self, slot: Slot, nbytes: int) -> None:
        """Has the kernel map the pages of `nbytes` bytes at once, which is three times faster than fault by fault."""
        if sys.platform == "linux":
            # Kernels before 5.14 do not know the call: then pages come by faults. A slot may lie beyond the end of a
            # chunk that was cut short: then `view` says so.
            with contextlib.suppress(OSError, ValueError):
                self._chunk(slot.chunk).madvise(MADV_POPULATE_WRITE, slot.offset, nbytes)

    def look_away(self, slot: Slot) -> None:
        """Has this process not count a shared slot's pages as its own any more. They stay, with what is in them."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._chunk(slot.chunk).madvise(mmap.MADV_DONTNEED, slot.offset, slot.capacity)

    def lock(self, slot: Slot, lock: PageLock) -> bool:
        """Has a slot be page-locked, and all that lies before it in its chunk. False: it was refused."""
        end = -(-(slot.offset + slot.capacity) // LOCK_STEP) * LOCK_STEP
        mapping = self._chunk(slot.chunk)
        return mapping.lock_up_to(min(end, len(mapping)), lock)

    def discard(self, slot: Slot) -> None:
        """Gives a slot's pages back to the machine, unless a device may read them."""
        if self.keeps_pages:
            return
        self.backing.discard(self._chunk(slot.chunk), slot.offset, slot.capacity)

    def _chunk(self, chunk: int) -> LockableMapping:
        mapping = self._chunks.get(chunk)
        if mapping is None:
            mapping = self._chunks[chunk] = self.backing.map(self.index, chunk)
        return mapping


def _received_backing(descriptor: Any, span: int) -> FileBacking:
    return FileBacking(descriptor.detach(), span)


def largest_file() -> int:
    """Returns how many bytes a file of this process may have (`ulimit -f`); `sys.maxsize` where there is no limit."""
    if sys.platform == "win32":
        return sys.maxsize

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit // mmap.PAGESIZE * mmap.PAGESIZE


def _no_room() -> TransportError:
    message = explain(
        "a worker has no room for another batch",
        found=f"a limit on file sizes of {largest_file() >> 20} MiB, which batches in use already fill",
        expected="room for all batches of a worker that are in use",
        fix="lift the limit (`ulimit -f unlimited`), use smaller batches, keep fewer of them, or use num_workers=0",
    )
    return TransportError(message)


def _no_memory(size: int, error: Exception) -> TransportError:
    message = explain(
        "cannot map memory for a batch",
        found=error,
        expected=f"{size >> 20} MiB of address space",
        fix="lift the limit on virtual memory (`ulimit -v unlimited`), or use smaller batches",
    )
    return TransportError(message)
