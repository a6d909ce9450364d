"""Descriptors: files in memory without a name, and what closes a descriptor with the object that owns it."""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
from typing import Any

from headrace.core.process import this_process


def close_with(owner: object, fd: int) -> weakref.finalize[Any, Any]:
    """Has a descriptor closed when `owner` is collected. Returns the finalizer.

    Not in a forked child, and not while Python exits: a daemon thread may use it to the very end, and then the system
    closes it.
    """
    finalizer = weakref.finalize(owner, _close_in, this_process.current, fd)
    finalizer.atexit = False
    return finalizer


def _close_in(owner: this_process.Process, fd: int) -> None:
    # A forked child has copies of the owner and of the descriptor, whose number it may have given to another file.
    if owner is this_process.current and not sys.is_finalizing():
        os.close(fd)


def nameless_file(holds: str) -> int:
    """Returns the descriptor of a new, empty file in memory; the caller owns it. Raises OSError.

    holds: what it is for, in a word: `lsof` and /proc show it.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"headrace-{holds}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class ReadOnlyFile:
    """A file that is open for reading, closed when the last reference is gone.

    Another thread may need room for its own file while this one reads. If that closed the descriptor, its number could
    be that of another file by the time of the read.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self.descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        close_with(self, self.descriptor)
