"""Objects fetched whole, as files of this machine, for formats whose libraries read nothing else."""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

from headrace.core.errors import MachineError
from headrace.storage.cache import Lease
from headrace.storage.fetched_folder import FetchedFolder
from headrace.storage.files import info_of
from headrace.storage.listing import current
from headrace.storage.locations import parse
from headrace.storage.stores.objects import ObjectInfo, Store
from headrace.storage.stores.registry import register
from headrace.telemetry.progress import bytes_bar

LOGGER = logging.getLogger("headrace")

PIECE = 8 << 20
"""Bytes that one request brings."""

WANT_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space on the disk, none left for this user, or none for a file so large."""

AT_ONCE = 16
"""Requests under way at a time."""

BAR_AFTER = 1.0
"""Seconds behind which a bar is shown."""

Report = Callable[[int], None]


class FetchedFiles:
    """Objects as files in a folder of this machine, which goes with this object.

    Where there is a cache on this node, the folder has links to files in it, which stay there for the next time.
    Other processes may have a copy of this object, and read the files as long as this one lives.
    """

    def __init__(self, folder: str, urls: Sequence[str]) -> None:
        """Fetches the objects. folder: the URL in which they lie, whose sub-folders they keep.

        Raises `StorageError`, and `MachineError` if the disk is full.
        """
        objects = [info_of(url) for url in urls]
        self._folder = FetchedFolder()
        self.path = self._folder.path
        # All are of one store, whose cache stays open meanwhile: each object would open it anew.
        self._stores = [register(current().settings(parse(url))) for url in urls[:1]]
        # What is leased is not evicted as long as somebody holds the lease.
        self._leases: list[Lease] = []
        try:
            self._fetch_all(folder, urls, objects)
        except BaseException:
            # The error may be kept for long, and the object with it.
            self._folder.close()
            raise

    def _fetch_all(self, folder: str, urls: Sequence[str], objects: Sequence[ObjectInfo]) -> None:
        begin = len(folder.rstrip("/")) + 1
        total = sum(info.size for info in objects)
        here = str(Path(self.path).parent.parent)
        disk = shutil.disk_usage(here)
        # Rather at once than after an hour. Some file systems do not say how large they are.
        if current().cache is None and disk.total > 0 and disk.free < total:
            place = folder
            if len(urls) == 1:
                place = urls[0]
            raise _no_room(place, here, total, os.strerror(errno.ENOSPC))

        with bytes_bar(f"fetching {folder}", total, after=BAR_AFTER) as report, ThreadPoolExecutor(AT_ONCE) as threads:
            for url, info in zip(urls, objects, strict=True):
                file = Path(self.path, url[begin:])
                file.parent.mkdir(parents=True, exist_ok=True)
                fetch = functools.partial(_fetch, current().store(parse(url)), info, threads, report)
                lease = _leased(url, info, fetch)
                if lease is not None:
                    self._leases.append(lease)
                    file.symlink_to(lease.path)
                    continue

                try:
                    with file.open("xb") as stream:
                        fetch(stream)
                except OSError as error:
                    if error.errno not in WANT_SPACE:
                        raise
                    raise _no_room(url, here, total, str(error.strerror)) from error

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process does not remove what this one still reads.
        return {"path": self.path}


def _leased(url: str, info: ObjectInfo, fetch: Callable[[IO[bytes]], None]) -> Lease | None:
    """Returns a file of the cache that holds an object; None if there is no cache, or no room in it."""
    lookup = current()
    if lookup.cache is None or info.etag is None:
        return None

    cache = register(lookup.settings(parse(url))).cache()
    if cache is None:
        return None
    try:
        return cache.whole_file(url, info.etag, info.size, fetch)
    except OSError as error:
        if error.errno not in WANT_SPACE:
            raise
        folder = str(lookup.cache.folder)
        raise _no_room(url, folder, info.size, str(error.strerror), is_cache=True) from error
    except MachineError as error:
        LOGGER.warning("%s is fetched without the cache: %s", url, error)
        return None


def _fetch(store: Store, info: ObjectInfo, threads: ThreadPoolExecutor, report: Report, file: IO[bytes]) -> None:
    descriptor = file.fileno()

    def fetch(start: int) -> int:
        data = store.read(info.key, start, min(start + PIECE, info.size), info.etag)
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], start + done)
        return len(data)

    pieces = [threads.submit(fetch, start) for start in range(0, info.size, PIECE)]
    try:
        for piece in pieces:
            report(piece.result())
    finally:
        # The file is about to be closed. A thread that still wrote to its number might write into another file.
        for piece in pieces:
            piece.cancel()
        wait(pieces)


def _no_room(url: str, folder: str, needed: int, reason: str, *, is_cache: bool = False) -> MachineError:
    """Returns the error for a disk that is full. folder: on this machine."""
    free = shutil.disk_usage(folder).free
    fix = (
        "make room there, or name a folder on a larger disk: cache_dir= of headrace.open, or TMPDIR in the environment"
    )
    if is_cache:
        fix = "make room there, or name a folder on a larger disk by cache_dir="

    return MachineError.about(
        "no room for data that must be fetched whole",
        place=f"{url}, fetched into {folder}",
        found=f"{reason}: {free:,} bytes are free",
        expected=f"{needed:,} bytes",
        fix=fix,
    )
