"""Faults that cost memory: one that leaks, one that swells, one that runs into a limit.

All memory is touched, so that it counts as used.
"""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

STEP = 64 << 20
"""Bytes that a balloon takes at once."""

PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Memory of this process alone, where the system makes a difference."""

_LEAKED: list[mmap.mmap] = []


@dataclass(frozen=True)
class Leak:
    """Takes memory and keeps it as long as the process lives: a cache without a bound.

    Attributes:
        nbytes: taken by each call.

    Examples:
        >>> from headrace.testing import Faulty, Leak
        >>> Faulty([1, 2, 3], {1: Leak(4096)})[1]
        2
    """

    nbytes: int

    def __call__(self) -> None:
        """Takes the memory. Each call takes as much again."""
        _LEAKED.append(_touched(self.nbytes))


@dataclass(frozen=True)
class Balloon:
    """Takes memory step by step and frees it: one sample that is far larger than the others.

    On the way there a `MemoryError` is raised or the OOM killer ends a process, if the machine or a cgroup
    allows less. Without such a limit this really takes the memory: run it in a container.

    Attributes:
        nbytes: taken by each call.

    Examples:
        >>> from headrace.testing import Balloon, Faulty
        >>> Faulty([1, 2, 3], {1: Balloon(4096)})[1]
        2
    """

    nbytes: int

    def __call__(self) -> None:
        """Takes the memory and frees it, also if it ends in a `MemoryError`."""
        taken: list[mmap.mmap] = []
        # The traceback of a MemoryError keeps this frame with its variables, and so would keep the memory.
        try:
            for start in range(0, self.nbytes, STEP):
                taken.append(_touched(min(STEP, self.nbytes - start)))
        finally:
            for piece in taken:
                piece.close()


@dataclass(frozen=True)
class LimitMemory:
    """Raises a real `MemoryError`: limits the address space, and asks for more than that.

    The limit holds for the whole process while this runs, a few microseconds; other threads may meet it. Where the
    system knows no such limit, the size asked for is one that no machine has.

    Attributes:
        nbytes: how many more than now the limit allows.

    Examples:
        >>> from headrace.testing import Faulty, LimitMemory
        >>> dataset = Faulty([1, 2, 3], {1: LimitMemory()})
    """

    nbytes: int = 0

    def __call__(self) -> NoReturn:
        """Raises `MemoryError`; the limit is then as it was."""
        if sys.platform != "linux":
            bytearray(sys.maxsize)
        else:
            import resource

            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            limit = _address_space() + self.nbytes
            if soft != resource.RLIM_INFINITY:
                limit = min(limit, soft)
            # As much as all memory together is asked for: no free piece of the heap is that large, so the system must
            # be asked, and refuses.
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            try:
                bytearray(limit)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

        raise MemoryError("more memory was given than the limit allows")


def _touched(nbytes: int) -> mmap.mmap:
    try:
        piece = mmap.mmap(-1, nbytes, **PRIVATE)
    except OSError as error:
        raise MemoryError(f"no memory for {nbytes} bytes") from error

    for start in range(0, nbytes, mmap.PAGESIZE):
        piece[start] = 1

    return piece


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
