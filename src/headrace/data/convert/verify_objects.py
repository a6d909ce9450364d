"""Objects in a store compared with the lengths and checksums of a manifest: read once, several parts at a time."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from headrace.core.errors import StorageError
from headrace.core.text.printable import printable
from headrace.data.convert.bad_images import one_line
from headrace.data.convert.verified import Verified
from headrace.data.formats.manifest import NAME, Manifest, read_manifest
from headrace.data.formats.unfinished import AREA, refuse_unfinished
from headrace.storage.files import info_of, is_file, is_folder, join, name_of, objects_below
from headrace.storage.listing import current
from headrace.storage.locations import parse
from headrace.storage.stores.objects import ObjectInfo, Store
from headrace.telemetry.progress import bytes_bar

PART = 8 << 20
"""Bytes that one request brings."""

AHEAD = 16
"""Requests under way or waiting to be looked at: together they hold so many parts in memory."""

BAR_AFTER = 1.0
"""Seconds behind which a bar is shown."""


class ObjectPart(NamedTuple):
    """Bytes `start` to `stop - 1` of an object."""

    name: str
    object: ObjectInfo
    start: int
    stop: int


def compared_with_manifest(url: str) -> Verified | None:
    """Compares the objects at a URL with their manifest; None if there is none. Call it in a `lookup`.

    Shows a bar of bytes on a terminal. Raises `FormatError` for a damaged manifest and for data that are not complete,
    and `StorageError` if the store does not answer.
    """
    refuse_unfinished(url)
    manifest = read_manifest(url)
    if manifest is None:
        return None

    found = Verified(url, manifest.format, recorded=manifest.length)
    present = _objects_at(url)
    objects = {}
    for name, (size, _) in manifest.files.items():
        found.files += 1
        info = present.get(name)
        if info is None:
            found.add(f"{_named(url, name)}: missing")
        elif info.size != size:
            found.checksums += 1
            sizes = f"{info.size:,} bytes, {size:,} expected"
            found.add(f"{_named(url, name)}: another bytes than when it was written ({sizes})")
        else:
            objects[name] = info

    _compare(url, objects, manifest, found)
    for name in sorted(present.keys() - manifest.files.keys()):
        found.add(f"{_named(url, name)}: not in the manifest")

    return found


def _objects_at(url: str) -> dict[str, ObjectInfo]:
    """Returns the objects of data, but for the manifest, by the names that the manifest has for them."""
    if not is_folder(url):
        if is_file(url):
            return {name_of(url): info_of(url)}
        return {}

    found = {}
    for name, info in objects_below(url):
        if name != NAME and not name.startswith(f"{AREA}/"):
            found[name] = info

    return found


def _compare(url: str, objects: dict[str, ObjectInfo], manifest: Manifest, found: Verified) -> None:
    """Reads objects that have the right length, and notes those of another checksum."""
    if not objects:
        return

    total = sum(info.size for info in objects.values())
    failures: dict[str, StorageError] = {}
    checksums = dict.fromkeys(objects, 0)
    store = current().store(parse(url))
    with bytes_bar(f"verifying {url}", total, after=BAR_AFTER) as report:
        for part, data in _read_ahead(store, parts_of(objects)):
            if isinstance(data, StorageError):
                failures.setdefault(part.name, data)
            else:
                checksums[part.name] = zlib.crc32(data, checksums[part.name])
            report(part.stop - part.start)

    for name, crc in checksums.items():
        if name in failures:
            found.add(f"{_named(url, name)}: {one_line(failures[name])}")
            continue

        found.checksums += 1
        size, expected = manifest.files[name]
        if crc != expected:
            sizes = f"{size:,} bytes, {size:,} expected"
            found.add(f"{_named(url, name)}: another checksum than when it was written ({sizes})")


def parts_of(objects: dict[str, ObjectInfo]) -> Iterator[ObjectPart]:
    """Yields the parts of objects, those of each in order."""
    for name, info in objects.items():
        for start in range(0, info.size, PART):
            yield ObjectPart(name, info, start, min(start + PART, info.size))


def _read_ahead(store: Store, parts: Iterable[ObjectPart]) -> Iterator[tuple[ObjectPart, memoryview | StorageError]]:
    """Yields parts in their order with their bytes, or why these cannot be had."""

    def read(part: ObjectPart) -> memoryview | StorageError:
        try:
            return store.read(part.object.key, part.start, part.stop, part.object.etag)
        except StorageError as error:
            return error

    waiting: deque[tuple[ObjectPart, Future[memoryview | StorageError]]] = deque()
    with ThreadPoolExecutor(AHEAD) as threads:
        try:
            for part in parts:
                waiting.append((part, threads.submit(read, part)))
                if len(waiting) == AHEAD:
                    first, future = waiting.popleft()
                    yield first, future.result()

            for first, future in waiting:
                yield first, future.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _named(url: str, name: str) -> str:
    """Returns an object's URL in one line, whatever characters are in it."""
    if is_folder(url):
        return printable(join(url, name), kept="")
    return printable(url, kept="")
