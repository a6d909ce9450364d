"""Processes that tests fork, and objects whose bytes say where they come from."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from headrace.storage.cache import CachedObject, DiskCache

BLOCK = 4096


def content(url: str, size: int) -> bytes:
    """The bytes of an object: other ones for every URL."""
    seed = int.from_bytes(url.encode()[-8:].rjust(8), "little")
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8).tobytes()


def fork(function: Callable[[], object]) -> int:
    """Calls a function in a forked child, which ends with status 0, or 1 after an exception. Returns its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        function()
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def status_of(pid: int) -> int:
    """Waits for a child, and returns its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def children(*functions: Callable[[], object]) -> Iterator[list[int]]:
    """Runs functions in children, which are killed at the end if they still run."""
    pids = [fork(function) for function in functions]
    try:
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def file_of(cached: CachedObject, cache: DiskCache) -> Path:
    """The file of an object."""
    return cache.folder / "objects" / cached.name


def read(cached: CachedObject, start: int, stop: int) -> bytes | None:
    """Bytes of an object; None if they are not all there."""
    out = bytearray(stop - start)
    if cached.read_into(start, stop, out):
        return bytes(out)
    return None


def disk_use(cache: DiskCache) -> int:
    """The bytes that all files of objects and all whole files take on the disk."""
    files = [*cache.folder.glob("objects/*/*"), *cache.folder.glob("whole/*")]
    return sum(file.stat().st_blocks * 512 for file in files)
