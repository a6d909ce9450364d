"""What the processes of a node share besides the files of the objects: a small file about the cache's use.

A *use* begins when a process opens the cache while no other has it open, and ends with the last one. All processes hold
a shared lock on the file (flock). Who gets it exclusively is alone: it draws a new mark, counts the bytes again and
removes what killed processes left. Blocks carry the mark of the use in which they were written or verified: after a
power cut, or a mishap of the disk between two runs, the mark is an old one, and the CRC is compared once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.files.file_lock import NoLocks, lock_file
from headrace.core.process import this_process
from headrace.storage.cache import layout
from headrace.storage.cache.byte_count import ByteCount
from headrace.storage.cache.folders import HEX, JOBS, WHOLE, Folders
from headrace.storage.cache.marker import BEFORE, MAGIC, MARKER, RECORD, boot
from headrace.storage.cache.open_files import OpenFile, OpenFiles

MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP)
_ALWAYS = os.O_NOFOLLOW | os.O_CLOEXEC
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)

_nodes: weakref.WeakSet[Node] = weakref.WeakSet()


class Node:
    """A cache as one process uses it: its folders, its open files, the bytes in use. Raises nothing but at the start.

    A forked child goes on with what does not belong to the parent alone: it gives up the parent's descriptors, locks
    and claims, and takes a shared lock of its own.
    """

    def __init__(self, path: Path, limit: int | None, job: int, say: Callable[[str], None]) -> None:
        """Opens a cache, which is made if there is none. Raises `UsageError` if the folder cannot be one."""
        self.job = job
        self.limit = limit
        self.mark = layout.UNKNOWN_USE
        self.mark_bytes = b""
        """The mark as it stands in a table; empty if the use is not known, so that nothing equals it."""
        self.writable = True
        self.usable = True
        self.locks_ranges = True
        """Whether the file system has locks of byte ranges."""
        self.files = OpenFiles()
        self.count = ByteCount(None, limit, writable=False)
        self._say = say
        self._said: set[str] = set()
        self._forked: weakref.WeakMethod[Callable[[], None]] | None = None
        self._marker: OpenFile | None = None
        self._job_file: OpenFile | None = None
        self.folders = self._open_folders(path)
        try:
            self._begin()
        except BaseException:
            # Whoever keeps the exception keeps this object, too, and all others would wait for its lock.
            self.close()
            raise
        _nodes.add(self)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _open_folders(self, path: Path) -> Folders:
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
            return Folders(path)
        except OSError as error:
            fix = "choose another folder for the cache"
            raise UsageError.about(
                "cannot open the cache", place=path, found=error.strerror or error, expected="a folder", fix=fix
            ) from error

    def _begin(self) -> None:
        """Opens the file that all share, and finds out whether this process is the first."""
        self._marker = self._open_marker()
        if self._marker is None:
            self.usable = False
            self.writable = False
            return
        self.count = ByteCount(self._marker, self.limit, writable=self.writable)

        try:
            if self.writable and lock_file(self._marker.fd, exclusive=True):
                self._begin_use()
            # From here to the shared lock another process may be the first once more, and draw a newer mark. That does
            # no harm: the mark is read when the shared lock is held.
            lock_file(self._marker.fd, exclusive=False, wait=True)
        except NoLocks:
            self.say_once("locks", "the file system of the cache has no locks: its blocks are verified more often")
            self._write_record_if_empty()
            return
        except OSError as error:
            self.trouble(error, "opening the cache")
            return

        self._read_mark()
        self._hold_job()

    def _open_marker(self) -> OpenFile | None:
        try:
            return self.files.adopt(OpenFile(self.folders.open(MARKER, os.O_RDWR | os.O_CREAT)))
        except OSError as error:
            if error.errno not in READ_ONLY:
                self.trouble(error, "opening the cache")
                return None
            self.say_once("read only", f"the cache {self.folders.path} cannot be written to: it is only read")
            self.writable = False

        try:
            return self.files.adopt(OpenFile(self.folders.open(MARKER, os.O_RDONLY)))
        except OSError:
            return None

    def _begin_use(self) -> None:
        """Is called by the only process that has the cache open."""
        marker = self._marker
        if marker is None:
            return

        record = os.pread(marker.fd, RECORD.size, 0)
        # After a power cut a file may be cut off, or hold zeros.
        is_damaged = not record.strip(b"\0") or MAGIC.startswith(record)
        if not is_damaged and not record.startswith((MAGIC, BEFORE)):
            fix = "choose another folder, or remove the file if it is not needed"
            raise UsageError.about("not a cache of headrace", place=self.folders.path / MARKER, fix=fix)

        try:
            self._remove_leftovers(objects=record.startswith(BEFORE))
            used = self.recount()
            # A use that is over had another mark, whatever became of the record: 32 random bits.
            mark = random.SystemRandom().randrange(layout.UNKNOWN_USE + 1, 1 << 32)
            os.pwrite(marker.fd, self._record(used, mark), 0)
        except OSError as error:
            self.trouble(error, "opening the cache")

    def _write_record_if_empty(self) -> None:
        marker = self._marker
        if marker is not None and self.writable and not os.pread(marker.fd, 1, 0):
            os.pwrite(marker.fd, self._record(self.recount(), layout.UNKNOWN_USE), 0)

    def _record(self, used: int, mark: int) -> bytes:
        return RECORD.pack(MAGIC, used, self.limit or 0, mark, boot(), 0, 0)

    def _read_mark(self) -> None:
        marker = self._marker
        if marker is None:
            return
        record = os.pread(marker.fd, RECORD.size, 0)
        if record.startswith(BEFORE):
            self._give_up("its files are those of an earlier version of headrace; choose another folder")
        if len(record) == RECORD.size and record.startswith(MAGIC):
            _, _, _, mark, booted, _, _ = RECORD.unpack(record)
            if booted != boot():
                self._give_up("another machine uses it now; each needs a folder of its own")
                return
            if mark > layout.UNKNOWN_USE:
                self.mark = mark
                self.mark_bytes = struct.pack("<I", mark)

    def _give_up(self, why: str) -> None:
        self.say_once("given up", f"the cache {self.folders.path} is not used: {why}")
        self.usable = False
        self.writable = False
        self.count.writable = False

    def _hold_job(self) -> None:
        """Holds a lock on a file by which other jobs see that this one lives."""
        if not self.writable:
            return
        try:
            fd = self.folders.open(f"{JOBS}/{self.job:016x}", os.O_RDWR | os.O_CREAT, make=True)
            self._job_file = self.files.adopt(OpenFile(fd))
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            # Another process may hold it for a moment, to see whether this job lives.
            lock_file(fd, exclusive=False, wait=True)
        except NoLocks:
            return
        except OSError as error:
            self.trouble(error, "opening the cache")

    def on_fork(self, call: Callable[[], None]) -> None:
        """Has a function called in forked children too."""
        self._forked = weakref.WeakMethod(call)

    def after_fork(self) -> None:
        """Is called in a forked child, while no other thread runs there."""
        if self._forked is not None:
            forked = self._forked()
            if forked is not None:
                forked()

        self.folders.forget_lock()
        self.files.close_copies()
        self._marker = self._open_marker()
        self.count = ByteCount(self._marker, self.limit, writable=self.writable)
        if self._marker is None:
            return
        try:
            # The parent holds a shared lock, unless it has just ended. In that case the mark may be an old one soon,
            # which only means that others verify what this process writes.
            lock_file(self._marker.fd, exclusive=False)
        except (NoLocks, OSError):
            return
        self._hold_job()

    def close(self) -> None:
        """Gives up all descriptors and locks."""
        _nodes.discard(self)
        self.count.close()
        self.files.close_copies()
        self.folders.close()

    def __del__(self) -> None:
        # When Python exits, this may run behind the end of the modules that it needs. What was counted ahead is then
        # counted again later, as behind a kill.
        if not sys.is_finalizing():
            self.count.close()

    def open_object(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Opens the file of an object, and returns the descriptor, which is the caller's. Raises `OSError`."""
        if not self.usable:
            raise FileNotFoundError(errno.ENOENT, "the cache is not used", name)
        # The names of objects begin with the name of their folder, of one letter. Every read of a small object comes
        # here, so this does not go through `Folders.open`.
        folder = self.folders.descriptors.get(name[0])
        if folder is None:
            return self.folders.open(name, flags)
        return os.open(name[2:], flags | _ALWAYS, dir_fd=folder)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def job_lives(self, job: int) -> bool:
        """Tells whether a process of a job has the cache open."""
        if job == self.job:
            return True
        return job_lives(self.folders, f"{JOBS}/{job:016x}")

    def jobs(self) -> list[int]:
        """Returns the numbers of the jobs that use the cache, or did so and were not cleared away yet."""
        found = []
        for name, _ in self.folders.names(JOBS):
            base = name.removeprefix(f"{JOBS}/")
            if layout.JOB_NAME.fullmatch(base):
                found.append(int(base, 16))
        return found

    # -- files -------------------------------------------------------------------------------------------------------

    def recount(self) -> int:
        """Returns the bytes that the cache's files take on the disk."""
        return sum(status.st_blocks * 512 for _, status in self.counted_files())

    def counted_files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yields the names and the status of the files whose bytes count: of objects, and all of whole files."""
        for name, status in self.folders.names(*HEX):
            if layout.NAME.fullmatch(name):
                yield name, status
        yield from self.folders.names(WHOLE)

    def _remove_leftovers(self, *, objects: bool) -> None:
        """Removes files that were never finished, and those of jobs that have ended. Nobody else uses the cache.

        objects: those of the layout before, too.
        """
        for name, _ in list(self.folders.names(*HEX, WHOLE, JOBS)):
            base = name.rpartition("/")[2]
            unfinished = layout.NEW_NAME.fullmatch(base) is not None and not name.startswith(f"{JOBS}/")
            if unfinished or (name.startswith(f"{JOBS}/") and layout.JOB_NAME.fullmatch(base)):
                self.folders.unlink(name)
            elif objects and layout.NAME.fullmatch(name):
                file = OpenFile(self.folders.open(name, os.O_RDONLY))
                if layout.is_ours(os.pread(file.fd, layout.HEADER, 0)):
                    self.folders.unlink(name)

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def trouble(self, error: OSError, doing: str) -> None:
        """Says once for each kind of error that the cache cannot do something; the caller goes on without it."""
        if error.errno in MISSING:
            kind = "missing"
            text = f"the cache {self.folders.path} is gone or damaged: continuing without it"
        else:
            kind = str(error.errno)
            text = f"the cache {self.folders.path} failed in {doing}: {error.strerror}; missing data is fetched again"
        self.say_once(kind, text)

    def say_once(self, kind: str, text: str) -> None:
        """Says a sentence, unless one of this kind was said before."""
        if kind not in self._said:
            self._said.add(kind)
            self._say(text)


def job_lives(folders: Folders, name: str) -> bool:
    """Tells whether a process holds the lock of a job's file; in doubt it does."""
    try:
        fd = folders.open(name, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True

    try:
        return not lock_file(fd, exclusive=True)
    except NoLocks:
        return True
    finally:
        os.close(fd)


def _after_fork_in_child() -> None:
    for node in list(_nodes):
        node.after_fork()


this_process.in_forked_child(_after_fork_in_child)
