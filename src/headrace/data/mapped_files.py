"""Tells when somebody writes over files that are mapped into memory: their values change while a loop reads them."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from headrace.core.errors import FormatError

LOGGER = logging.getLogger("headrace")

EVERY = 1.0
"""Seconds between two looks, at least."""

SHARE = 0.005
"""Of the time, that looks may take: in a process that maps much, they are rarer."""

RENAME = "replace files by renaming others over them, and open the data again"

GONE = " (deleted)"
"""What the kernel adds to the name of a file that was deleted, or replaced by renaming another over it."""


class MappedFiles:
    """The files of a dataset that this process has mapped. Linux only: elsewhere, none are known."""

    def __init__(self, beginning: str) -> None:
        """beginning: of the paths of the dataset's files."""
        self._beginning = beginning
        self._known: dict[str, os.stat_result] = {}
        self._told: set[str] = set()

    def look(self) -> float:
        """Looks at the files, and returns when to do so again, by `time.monotonic()`.

        Warns of a file that was written over since the first look, once; raises `FormatError` if one was cut short.
        Where a page that is gone is read before a look, the system ends the process.
        """
        began = time.monotonic()
        for file in _mapped(self._beginning):
            try:
                now = os.stat(file)  # noqa: PTH116 - a text, not a path
            except OSError:
                continue
            known = self._known.setdefault(file, now)
            # Another file of this name is no harm: what is mapped stays.
            if (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino):
                self._compare(file, known, now)

        ended = time.monotonic()
        return ended + max(EVERY, (ended - began) / SHARE)

    def _compare(self, file: str, known: os.stat_result, now: os.stat_result) -> None:
        if now.st_size < known.st_size:
            found = f"{now.st_size:,} bytes"
            expected = f"{known.st_size:,}, as before"
            what = "a file was cut short while it is read"
            raise FormatError.about(what, place=file, found=found, expected=expected, fix=RENAME)

        if now.st_mtime_ns != known.st_mtime_ns and file not in self._told:
            self._told.add(file)
            told = "%s was changed while it is read, by its time: batches may hold old and new values; %s"
            LOGGER.warning(told, file, RENAME)


def _mapped(beginning: str) -> set[str]:
    """Returns the files that this process has mapped, of those whose paths begin so."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()

    found = set()
    for line in lines:
        place = line.find(beginning)
        if place >= 0 and not line.endswith(GONE):
            found.add(line[place:])

    return found
