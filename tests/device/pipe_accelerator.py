"""A device that reads real pages: the kernel holds them in pipes, as a driver holds pages that are registered.

`vmsplice` puts pages into a pipe without a copy. Whoever reads the pipe gets what lies in these very pages at that
moment, whatever has become of the addresses since: of pages that were given back to the machine, what they held last.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref

from headrace.shared_memory.memory import MADV_POPULATE_WRITE
from headrace.testing import SimulatedAccelerator

PAGES = 64
"""Pages in a pipe."""

SPLICE_F_NONBLOCK = 2

libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class HeldPages:
    """The pages of a range of addresses, as they are when it is made."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self._pipes: list[int] = []
        self._end = weakref.finalize(self, _close, self._pipes)
        # A driver pins pages that can be written to, so that they exist from then on.
        _checked(libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), MADV_POPULATE_WRITE))
        for start in range(0, nbytes, PAGES * mmap.PAGESIZE):
            reading, writing = os.pipe()
            self._pipes += [reading, writing]
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PAGES * mmap.PAGESIZE)
            piece = _Vector(address + start, min(PAGES * mmap.PAGESIZE, nbytes - start))
            spliced = _checked(libc.vmsplice(writing, ctypes.byref(piece), 1, SPLICE_F_NONBLOCK))
            assert spliced == piece.length

    def read(self, address: int, nbytes: int) -> bytes:
        """Returns what lies in the pages now."""
        first = address - self.address
        found = bytearray()
        for number in range(len(self._pipes) // 2):
            start = number * PAGES * mmap.PAGESIZE
            length = min(PAGES * mmap.PAGESIZE, self.nbytes - start)
            if start < first + nbytes and first < start + length:
                content = self._content(self._pipes[2 * number], length)
                found += content[max(first - start, 0) : first + nbytes - start]
        return bytes(found)

    def _content(self, reading: int, length: int) -> bytes:
        """Returns what a pipe holds, which stays in it."""
        ours, theirs = os.pipe()
        try:
            fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, PAGES * mmap.PAGESIZE)
            assert _checked(libc.tee(reading, theirs, ctypes.c_size_t(length), SPLICE_F_NONBLOCK)) == length
            content = b""
            while len(content) < length:
                content += os.read(ours, length - len(content))
            return content
        finally:
            os.close(ours)
            os.close(theirs)

    def release(self) -> None:
        """Lets go of the pages."""
        self._end()


class PipeAccelerator(SimulatedAccelerator):
    """The simulated accelerator, whose page-locked memory is held by the kernel."""

    def _begin(self, memory: int | None, index: int) -> None:
        super()._begin(memory, index)
        first: PipeAccelerator = self.devices[0]  # type: ignore[assignment]  # all are alike
        self.held: dict[int, HeldPages] = first.held if index else {}

    def register(self, address: int, nbytes: int) -> bool:
        registered = super().register(address, nbytes)
        if registered:
            self.held[address] = HeldPages(address, nbytes)
        return registered

    def unregister(self, address: int) -> None:
        super().unregister(address)
        if address in self.held:
            self.held.pop(address).release()

    def read_locked(self, address: int, nbytes: int) -> bytes:
        for pages in self.held.values():
            if pages.address <= address and address + nbytes <= pages.address + pages.nbytes:
                return pages.read(address, nbytes)
        return super().read_locked(address, nbytes)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
