"""Which exceptions say that the machine is short of something, and so tell nothing of the data being read."""

from __future__ import annotations

import errno
import re

from headrace.core.errors import MachineError

SHORT = {
    errno.EAGAIN: "threads or processes",
    errno.ENOMEM: "memory",
    errno.EMFILE: "open files for this process",
    errno.ENFILE: "open files for the whole system",
    errno.ENOSPC: "space on the disk",
    errno.EDQUOT: "the disk quota of this user",
}
"""What is short, by the number of an `OSError`."""

FIXES = {
    "threads or processes": "raise `ulimit -u` (or the pids limit of the container), or end other processes",
    "memory": "end other processes, raise the memory limit, or load less at a time",
    "open files for this process": "raise `ulimit -n`",
    "open files for the whole system": "close files elsewhere, or raise fs.file-max",
    "space on the disk": "make room",
    "the disk quota of this user": "make room, or raise the quota",
}

WORDINGS = {
    "can't start new thread": "threads or processes",
    "Failed to launch worker thread": "threads or processes",
    "Resource temporarily unavailable": "threads or processes",
    "Cannot allocate memory": "memory",
    "allocate memory": "memory",
    "Too many open files": "open files for this process",
    "No space left on device": "space on the disk",
    "Disk quota exceeded": "the disk quota of this user",
}
"""The same in the texts of libraries that have no number for it: C++ puts strerror's words into a text of its own."""

SIZE = re.compile(r"malloc of size (\d+)|realloc.*? (\d+) failed|Unable to allocate ([\d.]+) ([KMGTPE]?)i?B")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}

ABSURD = 1 << 40
"""Bytes: who asks for so many at once was told so by damaged data."""

LONGEST_CHAIN = 16


def shortage(error: BaseException) -> str | None:
    """Returns what the machine is short of, if an exception, or what it was raised from, says so; otherwise None.

    A `MemoryError` for an absurd number of bytes is none: it comes of a damaged header.
    """
    current: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        if current is None:
            return None
        found = _shortage_of(current)
        if found is not None:
            return found
        # As Python prints it: `raise ... from None` hides the context.
        if current.__cause__ is not None or current.__suppress_context__:
            current = current.__cause__
        else:
            current = current.__context__

    return None


def _shortage_of(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in SHORT:
        return SHORT[error.errno]

    if isinstance(error, MemoryError):
        if _asked(str(error)) >= ABSURD:
            return None
        return "memory"

    if not isinstance(error, (OSError, RuntimeError, ValueError)) and not type(error).__module__.startswith("pyarrow"):
        return None

    text = str(error)
    for wording, what in WORDINGS.items():
        if wording in text:
            return what
    return None


def _asked(text: str) -> float:
    """Returns the bytes that were asked for, by the text of a MemoryError of NumPy or Arrow; 0 if it does not say."""
    match = SIZE.search(text)
    if match is None:
        return 0
    if match[3] is not None:
        return float(match[3]) * UNITS[match[4]]
    return int(match[1] or match[2])


def machine_error(place: object, what: str, short_of: str, error: BaseException) -> MachineError:
    """Returns the error for work that the machine could not do. short_of: see `shortage`."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    fix = f"{FIXES[short_of]}; the data need not be restored for this"
    return MachineError.about(
        f"the machine is short of {short_of}", place=place, found=f"{lines[0]}, while {what}", fix=fix
    )


def check_shortage(error: BaseException, place: object, what: str) -> None:
    """Raises `MachineError` if an exception says that the machine is short of something. what: was done, as a verb."""
    if isinstance(error, MachineError):
        raise error
    if (short_of := shortage(error)) is not None:
        raise machine_error(place, what, short_of, error) from error
