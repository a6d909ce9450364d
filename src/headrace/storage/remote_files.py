"""Files of a dataset that lie in a store: read by ranges, in whichever process their reader comes to."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.core.text.packed_strings import PackedStrings
from headrace.storage.fetching.endpoint import endpoint, tell_of_direct_reads
from headrace.storage.fetching.range_sources import cached_object
from headrace.storage.fetching.ranges import ByteRange, ObjectVersion, cut
from headrace.storage.listing import current
from headrace.storage.locations import parse
from headrace.storage.stores import registry
from headrace.storage.stores.objects import ObjectInfo
from headrace.storage.stores.registry import StoreSettings, keeps_all

FEW = 1024
"""Files up to which the version of each is kept: shards, of each of which many samples are read."""


class RemoteFiles:
    """Objects of one store, numbered, whose ranges can be read as long as this lives. It may be pickled and forked."""

    def __init__(self, settings: StoreSettings, objects: Sequence[ObjectInfo]) -> None:
        self._store = registry.register(settings)
        # One string of both: each sample asks for it. An ETag has no line breaks.
        self._names = PackedStrings.from_strings(f"{info.etag or ''}\n{info.key}" for info in objects)
        self.sizes = np.array([info.size for info in objects], np.int64)
        self._versions: dict[int, ObjectVersion] = {}

    @classmethod
    def at(cls, urls: Sequence[str]) -> RemoteFiles:
        """Returns the files at some URLs of one store. Raises `DatasetNotFoundError`."""
        from headrace.storage.files import info_of

        objects = [info_of(url) for url in urls]
        return cls(current().settings(parse(urls[0])), objects)

    @classmethod
    def of_folder(cls, url: str, objects: Sequence[tuple[str, ObjectInfo]]) -> RemoteFiles:
        """Returns objects in a folder, each given with its name relative to it."""
        return cls(current().settings(parse(url)), [info for _, info in objects])

    def __len__(self) -> int:
        return len(self._names)

    def version(self, number: int) -> ObjectVersion:
        """Returns which object a file is."""
        found = self._versions.get(number)
        if found is not None:
            return found

        etag, _, key = self._names[number].partition("\n")
        version = ObjectVersion(self._store.name, key, etag or None, int(self.sizes[number]))
        if len(self) <= FEW:
            self._versions[number] = version
        return version

    def part(self, number: int, start: int, stop: int) -> ByteRange:
        """Returns a range of a file."""
        return ByteRange(self.version(number), start, stop)

    def whole(self, number: int) -> ByteRange:
        """Returns all of a file."""
        return ByteRange(self.version(number), 0, int(self.sizes[number]))


def read_ranges(ranges: Sequence[ByteRange]) -> list[memoryview]:
    """Returns the bytes of ranges, which nobody changes. Raises `StorageError`."""
    if not ranges:
        return []
    if not _is_read_directly(ranges):
        return endpoint().read(ranges)

    # One for each: the allocator keeps buffers of this size at hand, where those of a whole batch are new memory.
    parts = [memoryview(bytearray(wanted.size)) for wanted in ranges]
    _read_past_endpoint(ranges, parts)
    return parts


def read_into(ranges: Sequence[ByteRange], out: memoryview) -> None:
    """Reads ranges, one behind the other, into a buffer that is as long as they are. Raises `StorageError`."""
    if not ranges:
        return
    if not _is_read_directly(ranges):
        endpoint().read_into(ranges, out)
        return

    _read_past_endpoint(ranges, cut(out, ranges))


def _read_past_endpoint(ranges: Sequence[ByteRange], parts: Sequence[memoryview]) -> None:
    """Reads ranges out of the cache of this node, each into its part; through the endpoint what is not there."""
    missing = []
    of_missing = []
    found = 0
    # Ranges of one file follow each other.
    for version, pairs in itertools.groupby(zip(ranges, parts, strict=True), key=_version_of):
        several = list(pairs)
        cached = cached_object(version)
        if cached is not None and cached.read_several([(wanted.start, wanted.stop, part) for wanted, part in several]):
            found += sum(wanted.size for wanted, _ in several)
            continue
        for wanted, part in several:
            missing.append(wanted)
            of_missing.append(part)

    if found:
        tell_of_direct_reads(found)
    if missing:
        for part, data in zip(of_missing, endpoint().read(missing), strict=True):
            part[:] = data


def _version_of(pair: tuple[ByteRange, memoryview]) -> ObjectVersion:
    return pair[0].object


def _is_read_directly(ranges: Sequence[ByteRange]) -> bool:
    """Tells whether this process looks into the cache itself.

    It does where everything stays there. A cache with a limit takes in and drops blocks in the order of the plan, which
    the endpoint knows: what was announced lies in its memory.
    """
    return keeps_all(ranges[0].object.store)


class RangeFile(io.RawIOBase):
    """A file in a store, for libraries that want to read and seek. Bytes that it was told to hold come from memory."""

    def __init__(self, files: RemoteFiles, number: int) -> None:
        super().__init__()
        self._files = files
        self._number = number
        self._at = 0
        self._held: list[tuple[int, int, memoryview]] = []
        self.size = int(files.sizes[number])

    def hold(self, ranges: Sequence[ByteRange]) -> None:
        """Reads ranges of this file at once, and keeps them, in the place of those that were held before."""
        self._held = []
        for wanted, data in zip(ranges, read_ranges(ranges), strict=True):
            self._held.append((wanted.start, wanted.stop, data))

    def keep(self, wanted: ByteRange, data: memoryview) -> None:
        """Holds a range that somebody has read already."""
        self._held.append((wanted.start, wanted.stop, data))

    def pread(self, count: int, start: int) -> memoryview:
        """Returns up to `count` bytes from byte `start` on; fewer only at the end of the file."""
        stop = min(start + count, self.size)
        if start >= stop:
            return memoryview(b"")

        for first, last, data in self._held:
            if first <= start and stop <= last:
                return data[start - first : stop - first]
        return read_ranges([self._files.part(self._number, start, stop)])[0]

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a byte, from the beginning, from here, or from the end."""
        if whence == io.SEEK_CUR:
            offset += self._at
        elif whence == io.SEEK_END:
            offset += self.size

        self._at = max(offset, 0)
        return self._at

    def tell(self) -> int:
        """Returns the byte that is read next."""
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes, all that are left if `size` is negative."""
        if size < 0:
            size = max(self.size - self._at, 0)

        data = self.pread(size, self._at)
        self._at += len(data)
        return data.tobytes()

    def read_buffer(self, size: int) -> memoryview:
        """Reads as `read` does, without a copy: pyarrow asks for it in this way, where a file can do so."""
        data = self.pread(size, self._at)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Reads the next bytes into a buffer. Returns how many."""
        out = memoryview(buffer).cast("B")
        data = self.pread(len(out), self._at)
        out[: len(data)] = data
        self._at += len(data)
        return len(data)
