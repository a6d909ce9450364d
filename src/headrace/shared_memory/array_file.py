"""A file without a name for the large arrays of a pickled object, which its receiver maps privately.

The receiver can write to the arrays; of what nobody writes to, there is one copy, however many processes map it.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from headrace.core.process.descriptors import nameless_file
from headrace.shared_memory.memory import Bytes

ALIGNMENT = 64
"""Of arrays in the file, in bytes."""

SMALL = 4 << 10
"""Arrays below this many bytes stay in the pickle."""

AT_ONCE = 1 << 30
"""Bytes that one call of the system writes at most; Linux takes 2 GB."""

Span = tuple[int, int]
"""Where an array lies: its first byte, and its bytes."""


class ArrayFile:
    """Where arrays are appended. `fd` belongs to the caller."""

    def __init__(self, holds: str) -> None:
        """Makes the file. holds: what lies in it, in a word. Raises OSError where there is no memory."""
        self.fd = nameless_file(holds)
        self.nbytes = 0

    def append(self, data: memoryview) -> Span:
        """Writes bytes behind those that are there, at an aligned place. Raises `OSError`."""
        start = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done : done + AT_ONCE], start + done)

        self.nbytes = start + len(data)
        return start, len(data)


def stays_in_pickle(keep: Callable[[Bytes], None]) -> Callable[[pickle.PickleBuffer], bool]:
    """Returns the `buffer_callback` of a pickler that hands large arrays to `keep`, and leaves small ones in place."""

    def stays(buffer: pickle.PickleBuffer) -> bool:
        data = np.frombuffer(buffer.raw(), np.uint8)
        if data.size < SMALL:
            return True
        keep(data)
        return False

    return stays


def mapped_privately(fd: int) -> Bytes:
    """Maps a file: what is written to the result is copied, and seen nowhere else. The descriptor may be closed."""
    return np.frombuffer(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE), np.uint8)


def parts_of(whole: Bytes, spans: Iterable[Span]) -> Iterator[Bytes]:
    """Yields the arrays at these places, in their order; nothing is copied."""
    return (whole[start : start + nbytes] for start, nbytes in spans)
