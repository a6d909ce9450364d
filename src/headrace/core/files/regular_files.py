"""Regular files only: a named pipe never ends a wait, and a device such as /dev/zero never ends."""

from __future__ import annotations

import os
import stat
from typing import IO

from headrace.core.errors import FormatError

SIDE_FILE = 256 << 20
"""Bytes that a file of descriptions beside data may have: what it unfolds to takes some times more."""


def kind_of(mode: int) -> str:
    """Returns what a file of this mode is, in words."""
    kinds = {
        stat.S_IFIFO: "a named pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises `FormatError` unless a path leads to a regular file; `OSError` if it leads nowhere."""
    mode = os.stat(path).st_mode  # noqa: PTH116 - also for paths of text
    if not stat.S_ISREG(mode):
        raise not_regular(path, mode)


def not_regular(path: str | os.PathLike[str], mode: int, expected: str = "a regular file") -> FormatError:
    """Returns the error for a path that leads to something that is no file of data."""
    fix = "remove it, or copy what it gives into a file"
    what = "data are read from regular files only"
    return FormatError.about(what, place=os.fspath(path), found=kind_of(mode), expected=expected, fix=fix)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a regular file to read, without a buffer. Raises `FormatError` if it is something else, and `OSError`.

    O_NONBLOCK has no effect on a regular file. Without it, opening a named pipe would wait for a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise not_regular(path, mode)
        return os.fdopen(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def read_side_file(path: str | os.PathLike[str], limit: int = SIDE_FILE) -> bytes:
    """Returns all bytes of a file that describes data.

    limit: bytes that it may have. Raises `FormatError` if it has more or is no regular file, and `OSError`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise too_large(path, size, limit)

        parts = []
        left = limit
        while left > 0 and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def too_large(path: str | os.PathLike[str], size: int, limit: int) -> FormatError:
    """Returns the error for a file of `size` bytes that describes data, and is longer than `limit`."""
    found = f"{size:,} bytes"
    fix = "delete it, or make the data again in fewer files"
    what = "a file that describes data is too large"
    expected = f"{limit:,} bytes at most"
    return FormatError.about(what, place=os.fspath(path), found=found, expected=expected, fix=fix)
