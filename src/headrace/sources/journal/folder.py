"""The folder of a journal: which files lie in it, and the few small ones beside the segments.

- `00000000000000000000.journal`, ...: segments, named by the number of their first record
- `journal.json`: version and id of the journal
- `source`: what is received there; messages of another source do not belong into the same journal
- `lock`: locked by the process that writes
- `durable`: eight bytes, the number behind the last record that is on the disk; written after each sync
- `trim`: eight bytes, up to where readers need nothing any more; the writer deletes what is behind

  In both, a ninth byte reserves the space of the number.
- `ids`: message ids that were last seen, kept when their segments go
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path

from headrace.core.errors import FormatError, StorageError, UsageError
from headrace.core.files.atomic_file import sync_folder
from headrace.core.files.file_lock import NoLocks, lock_file
from headrace.core.process.this_process import in_forked_child
from headrace.sources.journal.segments import VERSION, first_number

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

NUMBER = 8
"""Bytes of a number in `durable` and `trim`."""

DESCRIPTION = "journal.json"
SOURCE = "source"
LOCK = "lock"
DURABLE = "durable"
TRIM = "trim"
IDS = "ids"


def make_folder(folder: Path) -> str:
    """Makes a journal's folder, or finds one that is there. Returns its id. Raises `StorageError`, `FormatError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        description = folder / DESCRIPTION
        if not description.exists():
            _check_empty(folder)
            _describe(folder)
        return id_of(folder)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise cannot_write(folder, error) from error


def _check_empty(folder: Path) -> None:
    # A journal without its description was tampered with; other data may be somebody's only copy.
    names = (path.name for path in folder.iterdir())
    others = [
        name for name in names if name not in (LOCK, DURABLE, TRIM) and SOURCE not in name and DESCRIPTION not in name
    ]
    if others:
        found = f"a folder with {len(others):,} other files"
        expected = "an empty folder, or one of a journal"
        raise StorageError.about("cannot keep a journal here", place=folder, found=found, expected=expected)


def _describe(folder: Path) -> None:
    text = json.dumps({"format": VERSION, "id": uuid.uuid4().hex})
    aside = folder / f"{DESCRIPTION}.{uuid.uuid4().hex}"
    write_synced(aside, text.encode())
    # Of two processes that begin at the same time, one gives the id: a link, unlike a rename, replaces nothing.
    try:
        with contextlib.suppress(FileExistsError):
            os.link(aside, folder / DESCRIPTION)
    finally:
        aside.unlink()
    sync_folder(folder)


def check_source(folder: Path, place: str) -> None:
    """Raises `UsageError` if a journal holds messages of another source than `place`. Raises `StorageError`."""
    path = folder / SOURCE
    try:
        if not path.exists():
            _note_source(path, place)
        found = path.read_text()
    except OSError as error:
        raise cannot_write(folder, error) from error

    if found != place:
        what = "this journal holds messages of another source"
        fix = "give each source a journal= of its own; messages that are not needed any more: delete the folder"
        raise UsageError.about(what, place=folder, found=found, expected=place, fix=fix)


def _note_source(path: Path, place: str) -> None:
    aside = path.with_name(f"{SOURCE}.{uuid.uuid4().hex}")
    try:
        write_synced(aside, place.encode())
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def id_of(folder: Path) -> str:
    """Returns the id of a journal. Raises `FormatError`, `OSError`."""
    path = folder / DESCRIPTION
    try:
        found = json.loads(path.read_bytes())
        version = found["format"]
        identity = str(found["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError.about("the journal is damaged", place=path, found=error) from error

    if version != VERSION:
        expected = f"version {VERSION}"
        raise FormatError.about("the journal has another format", place=path, found=version, expected=expected)
    return identity


def segments_in(folder: Path) -> list[int]:
    """Returns the first numbers of the segments that are there now, ascending."""
    numbers = (first_number(path.name) for path in folder.iterdir())
    return sorted(number for number in numbers if number is not None)


def cannot_write(folder: Path, error: OSError) -> StorageError:
    """Returns the error of a journal that cannot be written; the caller raises it."""
    if error.errno in NO_SPACE:
        return no_space(folder, "some kilobytes for the small files beside the messages")
    fix = "repair the disk, or give another folder as journal="
    return StorageError.about("cannot write the journal", place=folder, found=error, fix=fix)


@contextlib.contextmanager
def suppressed_if_full() -> Iterator[None]:
    """Lets a full disk pass; other errors go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def no_space(folder: Path, needed: str) -> StorageError:
    """Returns the error of a disk without room for a journal; the caller raises it. needed: bytes, in words."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    found = f"{shutil.disk_usage(there).free:,} bytes free"
    fix = "free space on this disk, or give a folder on another one as journal="
    return StorageError.about("the disk is full", place=folder, found=found, expected=needed, fix=fix)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file and flushes it to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, data: bytes) -> None:
    """Replaces a file in one step, and flushes it and its name to the disk."""
    aside = path.with_name(f"{path.name}.new")
    try:
        write_synced(aside, data)
        aside.replace(path)
    except OSError:
        # A part of a file would take what the disk has left.
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_folder(path.parent)


def delete(path: Path) -> None:
    """Deletes a file, if it is there, and frees its space even where a reader has it open."""
    with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
        # The name goes first: a reader that finds the file cut sees why.
        path.unlink()
        file.truncate(0)


class SharedNumber:
    """A number in a file of its own, which one process writes and others read."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def reserve(self) -> None:
        """Takes the space that the number needs, if there is some: it can then be written on a disk that is full."""
        # Behind the number, which another process may write at this moment. One block of the disk holds both.
        with suppressed_if_full():
            os.pwrite(self._fd, b"\0", NUMBER)

    def read(self) -> int:
        """Returns the number; 0 if none was written."""
        # Eight bytes of one page: the kernel copies them at once, so that a reader sees the old number or the new one.
        data = os.pread(self._fd, NUMBER, 0)
        if len(data) < NUMBER:
            return 0
        return int.from_bytes(data, "little")

    def write(self, number: int) -> None:
        """Writes it, for others to see; not flushed to the disk."""
        os.pwrite(self._fd, number.to_bytes(NUMBER, "little"), 0)

    def sync(self) -> None:
        """Flushes it to the disk."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)


class WriterLock:
    """The lock of the one process that writes. The kernel releases it when the process dies."""

    def __init__(self, folder: Path) -> None:
        """Raises `StorageError` if another process has it, or this one already."""
        path = folder / LOCK
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            taken = lock_file(self._fd, exclusive=True)
        except NoLocks:
            # The file system has no locks: writers are not kept apart there.
            taken = True

        if not taken:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace")
            os.close(self._fd)
            fix = "end that process, or give this one a journal of its own"
            found = f"process {holder} writes to it" if holder else "another process writes to it"
            raise JournalTaken.about("the journal is in use", place=folder, found=found, fix=fix)

        # The file gives up no space before it has its own again: others may fill the disk meanwhile.
        holder_now = str(os.getpid()).encode()
        with suppressed_if_full():
            os.pwrite(self._fd, holder_now, 0)
        os.ftruncate(self._fd, len(holder_now))
        _HELD.add(self)

    def release(self) -> None:
        """Lets others write."""
        if self._fd >= 0:
            # Closing is not enough: a process that is being started may have a copy for a moment.
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
        self._fd = -1

    def leave_to_parent(self) -> None:
        """Closes a forked child's copy, which would keep the lock of a parent that was killed."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class JournalTaken(StorageError):
    """Another process writes to the journal."""


_HELD: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _leave_locks() -> None:
    for lock in list(_HELD):
        lock.leave_to_parent()


in_forked_child(_leave_locks)
