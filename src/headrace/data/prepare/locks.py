"""Files that keep other processes away: locked by `flock`, which ends with the process that holds it, and those that it
has forked meanwhile.

On file systems without locks, and on Windows, processes are not kept apart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Holds a lock file, which is made if there is none, folder and all.

    busy: called if another process holds it; if it returns, waits until that one lets go.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            try:
                lock(file)
            except BlockingIOError:
                busy()
                lock(file, wait=True)

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


def lock(file: IO[Any], *, wait: bool = False) -> None:
    """Locks an open file until it is closed. Raises `BlockingIOError` if another process has it, unless it may wait."""
    if fcntl is not None:
        try:
            if wait:
                how = fcntl.LOCK_EX
            else:
                how = fcntl.LOCK_EX | fcntl.LOCK_NB

            fcntl.flock(file, how)
        except OSError as error:
            # A file system without locks, unless it says that the file is locked.
            if isinstance(error, BlockingIOError):
                raise


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
