"""Locks that the kernel releases when a process dies: of byte ranges (OFD), and of whole files (flock).

Both kinds belong to an open file description. A forked child has the descriptions of its parent: as long as the child
lives, a lock of a killed parent would stay. `OpenFiles` therefore closes the child's copies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

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
    try:
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
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
    command = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    if not wait:
        command |= fcntl.LOCK_NB
    try:
        fcntl.flock(fd, command)
    except OSError as error:
        if error.errno in BUSY:
            return False
        if error.errno in UNSUPPORTED:
            raise NoLocks from error
        raise
    return True
