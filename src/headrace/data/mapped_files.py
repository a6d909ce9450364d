"""Tells when somebody writes over files that are mapped into memory: their values change while a loop reads them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable

from headrace.core.errors import FormatError

LOGGER = logging.getLogger("headrace")

EVERY = 1.0
"""Seconds between two looks, at least."""

SHARE = 0.005
"""Of the time, that looks may take: many files are looked at less often."""

RENAME = "replace files by renaming others over them, and open the data again"


class MappedFiles:
    """Files as they were when this process began to read them."""

    def __init__(self, files: Iterable[str]) -> None:
        self._known: dict[str, os.stat_result] = {}
        for file in files:
            status = _status_of(file)
            if status is not None:
                self._known[file] = status

    def look(self) -> float:
        """Looks at the files, and returns when to do so again, by `time.monotonic()`.

        Warns of a file that was written over; raises `FormatError` if one was cut short. Where a page that is gone is
        read before the next look, the system ends the process.
        """
        began = time.monotonic()
        for file, known in self._known.items():
            now = _status_of(file)
            # Another file of this name is no harm: what is mapped stays.
            if now is None or (now.st_dev, now.st_ino) != (known.st_dev, known.st_ino):
                continue
            if now.st_size < known.st_size:
                found = f"{now.st_size:,} bytes"
                expected = f"{known.st_size:,}, as when it was opened"
                what = "a file was cut short while it is read"
                raise FormatError.about(what, place=file, found=found, expected=expected, cure=RENAME)
            if now.st_mtime_ns != known.st_mtime_ns:
                told = "%s was written to while it is read: batches may hold old and new values; %s"
                LOGGER.warning(told, file, RENAME)
                self._known[file] = now

        ended = time.monotonic()
        return ended + max(EVERY, (ended - began) / SHARE)


def _status_of(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)  # noqa: PTH116 - a text, not a path
    except OSError:
        return None
