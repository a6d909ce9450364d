"""The shards of a dataset, on this machine or in a store: where their samples lie, and the bytes of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.core.process.descriptors import ReadOnlyFile
from headrace.core.process.per_process import Handle
from headrace.data.formats.columns import Array
from headrace.data.formats.tar.kept_index import index_from, index_of, index_path
from headrace.data.formats.tar.shard_index import TarIndex, walk_headers
from headrace.data.formats.unreadable import unreadable
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.files import is_file
from headrace.storage.remote_files import RemoteFiles, read_into, read_ranges

READ = 32 << 20
"""Bytes that are read at a time, at most, unless a single file is larger."""

OPEN = 64
"""Shards that a process has open at most: a stream leaves them behind, and a process may have 1,024 files open."""

KEPT = 64 << 20
"""Bytes of indices that a process keeps for the next epoch: to walk headers takes as long as to read the samples."""

PART = 8 << 20
"""Bytes of a shard that one request brings, where it is fetched whole."""

Run = tuple[int, int, int]
"""Bytes of a shard: its number, start and stop."""


class TarFiles(Protocol):
    """What reads shards. It may be forked and pickled, and used by several threads."""

    names: Sequence[str]
    """Of the shards, as a user would call them."""

    gap: int
    """Bytes between two wanted files of a shard that are rather read along than skipped."""

    def index(self, number: int) -> TarIndex:
        """Returns where the samples of a shard lie. Raises `FormatError`."""

    def stream(self, number: int) -> None:
        """Says that a stream has come to a shard, and comes back to those before it in another epoch."""

    def read(self, runs: Sequence[Run], out: Array) -> None:
        """Reads runs of bytes, one behind the other, into `out`, uint8. Raises `FormatError` and `OSError`."""

    def ranges(self, runs: Sequence[Run]) -> list[ByteRange]:
        """Returns what `read` will ask a store for; nothing if the shards lie on this machine."""

    def whole_ranges(self, number: int) -> list[ByteRange]:
        """Returns what is asked for if a shard is to be fetched whole; nothing if it need not be."""


class LocalTarFiles:
    """Shards on this machine."""

    gap = 64 << 10

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._opened: Handle[_OpenFiles] = Handle(_OpenFiles)

    def index(self, number: int) -> TarIndex:
        return self._opened.get().index(number, self.names[number])

    def stream(self, number: int) -> None:
        """See `TarFiles.stream`. The next epoch comes to them again: their indices are kept, as far as they fit."""
        self._opened.get().stream(number, self.names[number])

    def read(self, runs: Sequence[Run], out: Array) -> None:
        opened = self._opened.get()
        at = 0
        for number, start, stop in runs:
            file = opened.file(number, self.names[number])
            self._pread(file, number, out[at : at + stop - start], start)
            at += stop - start

    def ranges(self, runs: Sequence[Run]) -> list[ByteRange]:
        return []

    def whole_ranges(self, number: int) -> list[ByteRange]:
        return []

    def _pread(self, file: ReadOnlyFile, number: int, target: Array, start: int) -> None:
        # One call reads 2 GiB at most, and may read less than it was asked for.
        done = 0
        while done < len(target):
            got = os.preadv(file.descriptor, [target[done : done + READ].data], start + done)
            if got == 0:
                error = ValueError("the file has become shorter while it was read")
                raise unreadable(self.names[number], "tar shard", error)
            done += got


class _OpenFiles:
    """What one process has open, and knows."""

    def __init__(self) -> None:
        self._indices: dict[int, _Indexed] = {}
        self._files: dict[int, ReadOnlyFile] = {}
        self._lock = threading.Lock()
        self._current = -1

    def index(self, number: int, name: str) -> TarIndex:
        """Returns the index of a shard, which is read if nobody knows it."""
        known = self._indices.get(number)
        if known is None:
            # Looked at before it is read: if it is written anew meanwhile, it is another one when a stream comes again.
            stamp = _stamp_of(name)
            known = _Indexed(index_of(name), stamp)
            with self._lock:
                self._indices[number] = known
        return known.index

    def stream(self, number: int, name: str) -> None:
        """A stream has come to a shard: forgets it if it was written anew, and other indices if all are too large."""
        if number == self._current:
            return
        with self._lock:
            self._current = number
            known = self._indices.get(number)
            if known is not None and known.stamp != _stamp_of(name):
                del self._indices[number]
                self._files.pop(number, None)

            total = sum(one.index.nbytes for one in self._indices.values())
            for other in [other for other in self._indices if other != number]:
                if total <= KEPT:
                    return
                total -= self._indices.pop(other).index.nbytes

    def file(self, number: int, name: str) -> ReadOnlyFile:
        """Returns a shard, opened. It stays open as long as somebody holds it."""
        with self._lock:
            if number not in self._files:
                while len(self._files) >= OPEN:
                    del self._files[next(iter(self._files))]
                self._files[number] = ReadOnlyFile(name)
            return self._files[number]


@dataclass(frozen=True)
class _Indexed:
    """An index, and what the shard was like when it was read."""

    index: TarIndex
    stamp: object


def _stamp_of(name: str) -> object:
    """Returns what changes when a file is written anew; None: it is gone."""
    try:
        found = Path(name).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class RemoteTarFiles:
    """Shards in a store. Their indices come along into other processes, since each costs a request, or many."""

    gap = -1
    """Each sample is a range of its own: what is fetched together is decided where it is fetched."""

    def __init__(self, names: Sequence[str]) -> None:
        """names: their URLs."""
        self.names = names
        self._files = RemoteFiles.at(names)
        self._indices: dict[int, TarIndex] = {}
        self._numbers: dict[int, int] = {}
        self._last: tuple[int, memoryview] = (-1, memoryview(b""))
        beside: list[str] = []
        for number, name in enumerate(names):
            if is_file(index_path(name)):
                self._numbers[number] = len(beside)
                beside.append(index_path(name))

        self._beside: RemoteFiles | None = None
        if beside:
            self._beside = RemoteFiles.at(beside)

    def index(self, number: int) -> TarIndex:
        """See `TarFiles.index`. The indices of all shards are fetched at once, where they lie beside the shards."""
        if number not in self._indices and self._beside is not None:
            self._fetch_indices(self._beside)
        if number not in self._indices:
            # The headers lie between the samples. Asking for each of them takes longer than fetching everything.
            shard = _WholeShard(self._fetch_whole(number))
            self._indices[number] = walk_headers(shard, self.names[number])
            self._last = number, shard.data

        return self._indices[number]

    def _fetch_whole(self, number: int) -> memoryview:
        out = memoryview(bytearray(int(self._files.sizes[number])))
        read_into(self.whole_ranges(number), out)
        return out

    def whole_ranges(self, number: int) -> list[ByteRange]:
        """See `TarFiles.whole_ranges`. A shard whose index is not known is fetched whole, and read from memory."""
        if number in self._indices or number in self._numbers:
            return []

        size = int(self._files.sizes[number])
        parts = []
        for start in range(0, size, PART):
            parts.append(self._files.part(number, start, min(start + PART, size)))

        return parts

    def _fetch_indices(self, beside: RemoteFiles) -> None:
        numbers = [number for number in self._numbers if number not in self._indices]
        parts = read_ranges([beside.whole(self._numbers[number]) for number in numbers])
        for number, data in zip(numbers, parts, strict=True):
            found = index_from(bytes(data), index_path(self.names[number]), self._files.sizes[number])
            # One of another length belongs to a shard that was written anew: the headers tell, then.
            if found is None:
                del self._numbers[number]
            else:
                self._indices[number] = found

    def stream(self, number: int) -> None:
        """See `TarFiles.stream`. The indices stay: each has cost a request, or many."""
        if self._last[0] != number:
            self._last = -1, memoryview(b"")

    def read(self, runs: Sequence[Run], out: Array) -> None:
        """See `TarFiles.read`. A shard that was just fetched whole, for its index, is not fetched again."""
        number, data = self._last
        if runs and all(run[0] == number for run in runs):
            at = 0
            for _, start, stop in runs:
                out.data[at : at + stop - start] = data[start:stop]
                at += stop - start
            return

        read_into(self.ranges(runs), out.data)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": (-1, b"")}

    def ranges(self, runs: Sequence[Run]) -> list[ByteRange]:
        return [self._files.part(*run) for run in runs if run[2] > run[1]]


class _WholeShard:
    """The bytes of a shard that was fetched whole; see `ShardBytes`."""

    near = 1 << 62
    window = 1 << 16

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)

    def pread(self, count: int, start: int) -> memoryview:
        return self.data[start : start + count]
