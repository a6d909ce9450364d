"""Folders with one file a sample, on this machine or in a store: the names of the files, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headrace.core.text.packed_strings import PackedStrings
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.files import join
from headrace.storage.remote_files import RemoteFiles, read_ranges
from headrace.storage.stores.objects import ObjectInfo


class SampleFiles(Protocol):
    """What reads the files of samples. It may be forked and pickled, and used by several threads."""

    names: PackedStrings
    """Relative to the folder."""

    def place(self, key: int) -> str:
        """Returns the path of a file, as a user would call it."""

    def read(self, keys: Sequence[int]) -> Sequence[bytes | memoryview]:
        """Returns all bytes of files. Raises `OSError` that names the file."""

    def ranges(self, keys: Sequence[int]) -> list[ByteRange]:
        """Returns what `read` will ask a store for; nothing if the files lie on this machine."""


class LocalSampleFiles:
    """Files on this machine."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self.names = PackedStrings.from_strings(names)
        self._folder = folder

    def place(self, key: int) -> str:
        return str(Path(self._folder, self.names[key]))

    def read(self, keys: Sequence[int]) -> list[bytes]:
        return [Path(self._folder, self.names[key]).read_bytes() for key in keys]

    def ranges(self, keys: Sequence[int]) -> list[ByteRange]:
        return []


class RemoteSampleFiles:
    """Objects in a store."""

    def __init__(self, url: str, objects: Sequence[tuple[str, ObjectInfo]]) -> None:
        """objects: each with its name relative to the folder at `url`, in the order of the samples."""
        self.names = PackedStrings.from_strings(name for name, _ in objects)
        self._url = url
        self._files = RemoteFiles.of_folder(url, objects)

    def place(self, key: int) -> str:
        return join(self._url, self.names[key])

    def read(self, keys: Sequence[int]) -> list[bytes | memoryview]:
        parts = iter(read_ranges(self.ranges(keys)))
        found: list[bytes | memoryview] = []
        for key in keys:
            if self._files.sizes[key]:
                found.append(next(parts))
            else:
                found.append(b"")

        return found

    def ranges(self, keys: Sequence[int]) -> list[ByteRange]:
        return [self._files.whole(key) for key in keys if self._files.sizes[key]]
