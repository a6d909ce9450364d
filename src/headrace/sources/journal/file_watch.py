"""Waits until another process writes to a file: by inotify where there is one, else by looking again."""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from pathlib import Path

IN_MODIFY = 0x2
LOOK = 0.02
"""Seconds between two looks where nobody tells."""

DRAINED = 1 << 16


class FileWatch:
    """Tells when a file was written to. What was written before it was made is not told."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        if sys.platform != "linux":
            return

        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            return  # a limit of the machine
        if libc.inotify_add_watch(fd, os.fsencode(path), IN_MODIFY) < 0:
            os.close(fd)
            return
        self._fd = fd

    def wait(self, timeout: float) -> None:
        """Returns when the file was written to since the last call, and after `timeout` seconds at the latest."""
        if self._fd < 0:
            time.sleep(min(timeout, LOOK))
            return

        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        if poller.poll(max(timeout, 0.0) * 1000):
            os.read(self._fd, DRAINED)

    def close(self) -> None:
        """Ends it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
