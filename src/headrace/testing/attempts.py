"""A counter that survives everything: processes, threads, restarts and `kill -9`."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import shutil
import tempfile
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from headrace.core.errors import UsageError


class Attempts:
    """Counts attempts by key. Share it by passing it on: to threads, through fork, or pickled.

    Each key has a file in a temporary folder, and each attempt appends one byte. The kernel appends and moves the file
    position in one step, so no two attempts get the same number, no lock is held when a process dies, and an attempt
    that was begun is counted. The folder belongs to the process that made the counter: it is removed when the counter
    is closed or collected there, or when that process exits. If that process is killed, the folder stays.

    A key is anything whose `repr` is the same in all processes; whole numbers of every type are equal keys. An attempt
    costs some microseconds.

    Examples:
        >>> from headrace.testing import Attempts
        >>> with Attempts() as attempts:
        ...     attempts.count("read"), attempts.count("read"), attempts.of("read")
        (0, 1, 2)
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="headrace-attempts-")
        self._remove: Any = weakref.finalize(self, _remove, self._folder, os.getpid())

    def count(self, key: Hashable = "") -> int:
        """Records one attempt.

        Args:
            key: what is attempted.

        Returns:
            Its number, from 0.

        Raises:
            UsageError: the folder of the counter is gone.

        Examples:
            >>> from headrace.testing import Attempts
            >>> with Attempts() as attempts:
            ...     attempts.count()
            0
        """
        try:
            fd = os.open(self._file(key), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except FileNotFoundError as error:
            raise UsageError.about(
                "the attempts can no longer be counted",
                place=self._folder,
                found="no such folder",
                expected="the folder that the process made which created the counter",
                fix="keep the Attempts (or what holds it) there for as long as other processes count",
            ) from error

        try:
            os.write(fd, b"!")
            return os.lseek(fd, 0, os.SEEK_CUR) - 1
        finally:
            os.close(fd)

    def of(self, key: Hashable = "") -> int:
        """Tells how many attempts were recorded.

        Args:
            key: what was attempted.

        Returns:
            Their number.

        Examples:
            >>> from headrace.testing import Attempts
            >>> with Attempts() as attempts:
            ...     attempts.of("read")
            0
        """
        try:
            return self._file(key).stat().st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        """Removes the counts, if this process made the counter. Calling it again does nothing.

        Examples:
            >>> from headrace.testing import Attempts
            >>> Attempts().close()
        """
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> str:
        return self._folder

    def __setstate__(self, folder: str) -> None:
        # A copy owns nothing, even one in the same process: the original removes the folder.
        self._folder = folder
        self._remove = None

    def _file(self, key: Hashable) -> Path:
        with contextlib.suppress(TypeError):
            key = operator.index(key)  # type: ignore[arg-type]
        return Path(self._folder, hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest())


def _remove(folder: str, owner: int) -> None:
    # A forked child has the finalizer, too, and ends before its parent is done with the folder.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
