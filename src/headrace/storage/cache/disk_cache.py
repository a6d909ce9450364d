"""The cache of a node: where objects get their blocks, and their places as whole files."""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from headrace.core.errors import wrong_argument
from headrace.core.sizes import bytes_in
from headrace.storage.cache import layout
from headrace.storage.cache.blocks import CachedObject
from headrace.storage.cache.evictor import Evictor
from headrace.storage.cache.node import Node
from headrace.storage.cache.whole_files import Fetch, Lease, WholeFiles

log = logging.getLogger("headrace")

MOST = (1 << 63) - 1
"""Bytes of the largest limit: the marker has eight bytes for it."""


class DiskCache:
    """Blocks of objects in a folder, shared by all processes and jobs of a node. Several threads may use it.

    Readers read files directly; no process serves others. A process that is killed at any moment leaves a sound cache.
    A pickled cache is opened anew, for the same job, where it arrives; a forked child goes on with the parent's.
    """

    def __init__(
        self,
        folder: str | Path,
        limit: int | str | None = None,
        *,
        job: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Opens the cache, which is made if there is none.

        folder: on a disk of this node; other files in it are left alone. limit: of the bytes on the disk, for all jobs
        together; None: no limit. job: the number that all processes of a job give; None: a new one. say: is called
        with a sentence, once for each kind of trouble; None: a warning is logged. Raises `UsageError` for a folder
        that cannot be one, or a limit that is none.
        """
        if limit is not None:
            limit = limit_in(limit, "limit")
            if limit < layout.PAGE * 2:
                raise wrong_argument("limit", limit, f"room for one block of {layout.PAGE} bytes and its header")

        self.folder = Path(folder)
        self.limit = limit
        self.job = job or random.SystemRandom().randrange(1, 1 << 63)
        self._say = say
        self.node = Node(self.folder, limit, self.job, say or log.warning)
        self._evictor = Evictor(self.node)
        self._whole_files = WholeFiles(self.node, self._evictor)
        self.node.on_fork(self._after_fork)
        self._objects: weakref.WeakValueDictionary[str, CachedObject] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"DiskCache({str(self.folder)!r}, limit={self.limit})"

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (self.folder, self.limit, self.job, self._say)

    def open_object(self, url: str, etag: str, size: int, block: int) -> CachedObject:
        """Returns an object version; nothing is read from or made on the disk before it is used.

        url: as requests name it; what may be secret in it (user, query) is not written to the disk. etag: what tells
        this version from others. size: in bytes. block: bytes of a block, a power of two from 4 KiB to 8 MiB. Callers
        that give another size of blocks do not share blocks, unless the object fits into one block of either. Raises
        `UsageError`.
        """
        if not layout.MIN_BLOCK <= block <= layout.MAX_BLOCK or block & (block - 1):
            raise wrong_argument("block", block, "a power of two from 4 KiB to 8 MiB")
        if size < 0:
            raise wrong_argument("size", size, "bytes, 0 or more")
        shape = layout.shape_of(size, block)
        smallest = shape.header_room + shape.room_of(0)
        if self.limit is not None and smallest > self.limit:
            raise wrong_argument("limit", self.limit, f"room for one block and its header: {smallest} bytes")

        made = CachedObject(self.node, self._evictor, url, etag, shape)
        with self._lock:
            return self._objects.setdefault(made.name, made)

    def whole_file(self, url: str, etag: str, size: int, fetch: Fetch) -> Lease:
        """Returns a lease of an ordinary file with exactly the object's bytes; as a context manager it gives the path.

        The file has the object's suffix. If it is not there, this process calls `fetch` with a file that it is to
        write from the start, `size` bytes in any order; other processes wait meanwhile. A leased file stays, whatever
        room other jobs need. Do not change it. Raises `MachineError` if there is no room, or the folder cannot be used,
        and what `fetch` raises.
        """
        return self._whole_files.lease(url, etag, size, fetch)

    def used(self) -> int:
        """Returns the bytes that the cache takes on the disk, with headers."""
        return self.node.count.used()

    def close(self) -> None:
        """Closes all files. The cache and its objects are not used afterwards."""
        self.node.close()

    def _after_fork(self) -> None:
        self._evictor.after_fork()
        self._lock = threading.Lock()
        for opened in list(self._objects.values()):
            opened.after_fork()


def limit_in(limit: int | str, name: str, *, place: str | None = None) -> int:
    """Returns the limit of a cache in bytes; arguments and errors as of `bytes_in`."""
    nbytes = bytes_in(limit, name, place=place)
    if nbytes > MOST:
        raise wrong_argument(name, limit, f"at most {MOST:,} bytes; None if there is no limit", place=place)
    return nbytes


def _opened(folder: Path, limit: int | None, job: int, say: Callable[[str], None] | None) -> DiskCache:
    return DiskCache(folder, limit, job=job, say=say)
