"""Gives parts of a file back to the file system."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any

KEEP_SIZE = 1
PUNCH_HOLE = 2
UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTSUP)


@functools.cache
def _fallocate() -> Any:
    """Returns the C library's function, which Python does not have; None where there is none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64
    except AttributeError:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int
    return function


def punch_hole(fd: int, start: int, length: int) -> bool:
    """Frees the pages of `length` bytes; reads give zeros there. Returns False where the file system cannot."""
    function = _fallocate()
    if function is None:
        return False

    while function(fd, PUNCH_HOLE | KEEP_SIZE, start, length):
        number = ctypes.get_errno()
        if number in UNSUPPORTED:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))

    return True
