"""A folder for temporary files that goes with its owner; what killed processes left is removed by the next one."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from headrace.core.errors import MachineError
from headrace.core.files.file_lock import NoLocks, lock_file
from headrace.core.process import this_process

LOGGER = logging.getLogger("headrace")

PREFIX = "headrace-fetched-"
"""Of the names of these folders."""

LOCK = "lock"
"""A file in such a folder. It is locked as long as the owner lives, or a child that was forked from it."""

FILES = "files"
"""The folder for files in such a folder."""

MARK = b"headrace made this folder. It removes it when nobody has this file locked.\n"
"""What the lock file has in it. No folder without it is ever removed."""

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_LOCK = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FetchedFolder:
    """A folder of this user alone, which is removed when this object is dropped, and at the end of the process."""

    def __init__(self) -> None:
        """Makes the folder, and removes those of processes that were killed. Raises `MachineError`."""
        place = "the folder for temporary files"
        folder = ""
        try:
            place = tempfile.gettempdir()
            _tell_of_wrong_variable(os.environ.get("TMPDIR", ""), place)
            remove_abandoned(place)
            folder = tempfile.mkdtemp(prefix=PREFIX)
            Path(folder, FILES).mkdir()
            lock = os.open(Path(folder, LOCK), OPEN_LOCK | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
            raise MachineError.about(
                "cannot make a folder for files that must be fetched whole",
                place=place,
                found=error.strerror or error,
                expected="a folder that this user may write to",
                fix="name one by TMPDIR in the environment, or cache_dir= of headrace.open",
            ) from error

        self.path = str(Path(folder, FILES))
        self._removal = weakref.finalize(self, _remove, folder, lock, this_process.current)
        # Others take no folder for abandoned whose lock file has no mark, and it gets its mark when it is locked. On a
        # file system without locks it gets none: after a kill it stays.
        with contextlib.suppress(NoLocks, OSError):
            if lock_file(lock, exclusive=True):
                os.write(lock, MARK)

    def close(self) -> None:
        """Removes the folder, and what is in it."""
        self._removal()


@functools.cache
def _tell_of_wrong_variable(wanted: str, place: str) -> None:
    """Says once that TMPDIR names no folder for temporary files: Python passes over it in silence."""
    if wanted and not os.access(wanted, os.W_OK | os.X_OK):
        LOGGER.warning("TMPDIR=%s is no folder that this user may write to: files are fetched to %s", wanted, place)


def _remove(folder: str, lock: int, owner: this_process.Process) -> None:
    """Removes a folder, in the process that has made it.

    A forked child inherits the finalizer, and the descriptor: as long as it has it, the folder is in use. It does not
    close it, since it may have given the number to another file.
    """
    if owner is not this_process.current:
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def remove_abandoned(place: str) -> None:
    """Removes the folders of this user in `place` whose owners, and all children of these, are gone."""
    for folder in Path(place).glob(f"{PREFIX}*"):
        # Somebody else's, no folder, without our mark, or gone meanwhile.
        with contextlib.suppress(OSError, NoLocks):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    # A link is not followed, to the folder or to the lock file: both must be this user's own.
    descriptor = os.open(folder, OPEN_FOLDER)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        lock = os.open(LOCK, OPEN_LOCK, dir_fd=descriptor)
        try:
            status = os.fstat(lock)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                return
            # Two processes may look at it at once: one of them gets the lock.
            if not lock_file(lock, exclusive=True) or os.pread(lock, len(MARK) + 1, 0) != MARK:
                return
            if set(os.listdir(descriptor)) <= {LOCK, FILES}:  # noqa: PTH208 - of a descriptor
                # Links in it lead to files of the cache; they are removed, and what they lead to stays.
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    finally:
        os.close(descriptor)
