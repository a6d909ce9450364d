"""Whole objects as ordinary files, for formats that read local files only: HDF5, LMDB, npz.

Beside each file lies its record. The record's lock (flock) is held exclusively by who fetches or removes the file, and
shared by who uses it. The record is written last, when the file is complete and on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from headrace.core.errors import MachineError
from headrace.core.files.file_lock import NoLocks, lock_file
from headrace.storage.cache import layout
from headrace.storage.cache.evictor import Evictor
from headrace.storage.cache.folders import WHOLE
from headrace.storage.cache.node import Node
from headrace.storage.cache.open_files import OpenFile
from headrace.storage.cache.whole_records import WholeRecord, data_name, read_record, record_name_of, write_record

SOONEST = -1
"""The next use of a file that is wanted now: blocks leave for it, whenever they are used."""
CHUNK = 1 << 20

Fetch = Callable[[BinaryIO], None]


class Lease:
    """Keeps a whole file in the cache until `release`, the end of a `with` block, or the end of the process.

    A lease that is collected ends too.

    A forked child may read the file as long as its parent holds the lease.
    """

    def __init__(self, path: Path, record: OpenFile) -> None:
        self.path = path
        self._record = record

    def release(self) -> None:
        """Ends the lease: the file may be removed from now on."""
        self._record.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class WholeFiles:
    """The whole files of a cache. Several threads may use it."""

    def __init__(self, node: Node, evictor: Evictor) -> None:
        self._node = node
        self._evictor = evictor

    def lease(self, url: str, etag: str, size: int, fetch: Fetch) -> Lease:
        """Returns a lease of a file with exactly the object's bytes, which is fetched if it is not there.

        See `DiskCache.whole_file`.
        """
        name = data_name(url, etag, size)
        while True:
            record = self._open_record(name)
            # Whoever keeps an exception keeps this frame, too: all others would wait for the record's lock.
            with contextlib.ExitStack() as stack:
                stack.callback(record.close)
                if self._lock_complete(record, name, url, size):
                    # Its time says when it was used last: of files that nobody leases, the oldest leave first.
                    with contextlib.suppress(OSError):
                        os.utime(self._path(name))
                    stack.pop_all()
                    return Lease(self._path(name), record)

                if self._lock_alone(record) and not self._is_complete(record, name, size):
                    self._fetch(record, name, WholeRecord(layout.public_url(url), etag, size, 0), fetch)

    def _open_record(self, name: str) -> OpenFile:
        node = self._node
        flags = os.O_RDWR | os.O_CREAT
        try:
            if not node.usable:
                raise FileNotFoundError(errno.ENOENT, "the cache is not used", str(node.folders.path))
            return node.files.adopt(OpenFile(node.folders.open(record_name_of(name), flags, make=True)))
        except OSError as error:
            place = node.folders.path
            fix = "choose another folder for the cache, or make room on its disk"
            raise MachineError.about("cannot cache a whole file", place=place, found=error, fix=fix) from error

    def _lock_complete(self, record: OpenFile, name: str, url: str, size: int) -> bool:
        """Takes the shared lock, waiting for who fetches the file; returns whether the file is complete."""
        try:
            if not lock_file(record.fd, exclusive=False):
                text = f"waiting for another process that fetches {layout.public_url(url)} into the cache"
                self._node.say_once(name, text)
                lock_file(record.fd, exclusive=False, wait=True)
        except NoLocks:
            self._node.say_once("locks", "the file system of the cache has no locks: files may be fetched twice")
        return record.is_linked() and self._is_complete(record, name, size)

    def _lock_alone(self, record: OpenFile) -> bool:
        """Takes the exclusive lock; returns whether the record still has its name."""
        with contextlib.suppress(NoLocks):
            lock_file(record.fd, exclusive=True, wait=True)
        return record.is_linked()

    def _is_complete(self, record: OpenFile, name: str, size: int) -> bool:
        if read_record(record.fd) is None:
            return False
        try:
            return self._node.folders.status(name).st_size == size
        except FileNotFoundError:
            return False

    def _fetch(self, record: OpenFile, name: str, found: WholeRecord, fetch: Fetch) -> None:
        node = self._node
        self._remove_unfinished(name)
        room = -(-found.size // layout.PAGE) * layout.PAGE + layout.PAGE
        if not self._evictor.make_room(room, SOONEST):
            fix = "raise the limit of the cache"
            place = f"the cache {node.folders.path}"
            what = "no room for a whole file"
            raise MachineError.about(what, place=place, found=f"{found.url}, {found.size} bytes", fix=fix)

        unfinished = f"{name.partition('.')[0]}.{os.urandom(8).hex()}.new"
        try:
            fd = node.folders.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, make=True)
            with open(fd, "r+b") as file:
                fetch(file)
                file.flush()
                crc = _checked(file, found)
                # The record is on the disk before the data otherwise, and would vouch for them after a power cut.
                os.fsync(file.fileno())

            node.folders.rename(unfinished, name)
            node.folders.flush(name)
            os.truncate(record.fd, 0)
            write_record(record.fd, WholeRecord(found.url, found.etag, found.size, crc))
        except BaseException:
            with contextlib.suppress(OSError):
                node.folders.unlink(unfinished)
            node.count.release(room)
            raise
        node.count.stored(room)

    def _remove_unfinished(self, name: str) -> None:
        """Removes what killed processes left. Nobody else fetches the file: this process holds its lock."""
        prefix = f"{name.partition('.')[0]}."
        for other, _ in list(self._node.folders.names(WHOLE)):
            if other.startswith(prefix) and layout.NEW_NAME.fullmatch(other.removeprefix(f"{WHOLE}/")):
                with contextlib.suppress(OSError):
                    self._node.folders.unlink(other)

    def _path(self, name: str) -> Path:
        return self._node.folders.path / name


def _checked(file: BinaryIO, expected: WholeRecord) -> int:
    """Returns the CRC-32 of a file that was fetched. Raises `MachineError` if it has not the right length."""
    crc = 0
    length = 0
    file.seek(0)
    while chunk := file.read(CHUNK):
        crc = zlib.crc32(chunk, crc)
        length += len(chunk)

    if length != expected.size:
        found = f"{length} bytes of {expected.url}"
        what = "an object was not fetched as a whole"
        raise MachineError.about(what, found=found, expected=f"{expected.size} bytes", fix="fetch it again")
    return crc
