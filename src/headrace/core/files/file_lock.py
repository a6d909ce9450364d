"""Locks that the kernel releases when a process dies: of byte ranges (OFD), and of whole files (flock).

Both kinds belong to an open file description. A forked child has the descriptions of its parent: as long as the child
lives, a lock of a killed parent would stay. Whoever holds one for long closes the child's copies.

On file systems without locks, and on Windows, processes are not kept apart.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK)

FIRST_BLOCK = 1 << 40
"""The byte whose lock stands for block 0; nothing is ever stored there."""


class NoLocks(Exception):
    """This file system has no locks of this kind."""


def lock_range(fd: int, start: int, length: int, *, exclusive: bool = True, wait: bool = False) -> bool:
    """Locks bytes of a file. Returns False if another open file description has some of them locked.

    Bytes that this description has locked already count as free: callers keep their own threads apart. Raises `NoLocks`
    where the file system has no such locks.
    """
    kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    return _set(fd, kind, start, length, wait)


def unlock_range(fd: int, start: int, length: int) -> None:
    """Releases bytes of a file that `lock_range` has locked."""
    try:
        _set(fd, fcntl.F_UNLCK, start, length, False)
    except NoLocks:
        return


def _set(fd: int, kind: int, start: int, length: int, wait: bool) -> bool:
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    wanted = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    return _is_taken(functools.partial(fcntl.fcntl, fd, command, wanted))


def _is_taken(take: Callable[[], object]) -> bool:
    """Takes a lock; returns False if another open file description has it. Raises `NoLocks`."""
    try:
        take()
    except OSError as error:
        if error.errno in BUSY:
            return False
        if error.errno in UNSUPPORTED:
            raise NoLocks from error
        raise
    return True


def lock_file(fd: int, *, exclusive: bool, wait: bool = False) -> bool:
    """Locks a whole file, or changes the kind of its lock (not at once: it may be free in between).

    Returns False if another open file description has it locked. Raises `NoLocks`.
    """
    if fcntl is None:
        raise NoLocks

    command = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    if not wait:
        command |= fcntl.LOCK_NB
    return _is_taken(functools.partial(fcntl.flock, fd, command))


@contextlib.contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Holds a lock file, which is made if there is none, folder and all.

    busy: called if another process holds it; if it returns, waits until that one lets go.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            if not lock_if_possible(file):
                busy()
                lock_if_possible(file, wait=True)

            # The holder may have removed the file while this process waited: it then holds a lock on a file that
            # nobody else can open, and must begin again with the one that is there now.
            if is_named(file, path):
                # Closing is not enough: a process that was forked meanwhile has the open file as well, and with it
                # the lock.
                try:
                    yield
                finally:
                    _unlock(file)
                return


def lock_if_possible(file: IO[Any], *, wait: bool = False) -> bool:
    """Locks an open file until it is closed; returns False if another process has it locked.

    On a file system without locks it returns True.
    """
    try:
        return lock_file(file.fileno(), exclusive=True, wait=wait)
    except NoLocks:
        return True


def _unlock(file: IO[Any]) -> None:
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def is_named(file: IO[Any], path: Path) -> bool:
    """Tells whether an open file is still the one at a path: another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
