"""The files of a Parquet dataset, on this machine or in a store: their footers, and columns of their row groups."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.process.per_process import Handle
from headrace.data.formats.guards.parquet_pages import Pread, leaves_of, start_of
from headrace.data.formats.unreadable import unreadable
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.remote_files import RangeFile, RemoteFiles, read_ranges

FAILURES = (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError, TypeError)

FOOTER = 64 << 10
"""Bytes at the end of a file that are fetched at once: they hold the footer of nearly all."""

LONGEST_NAME = 1 << 28
"""Bytes that a text in a footer may have."""


class ParquetFiles(Protocol):
    """What reads Parquet files. It may be forked and pickled, and used by several threads."""

    names: Sequence[str]
    """As a user would call them."""

    def metadata(self, number: int) -> Any:
        """Returns the footer of a file, a `pyarrow.parquet.FileMetaData`. Raises `FormatError` and `OSError`."""

    def schema(self, number: int) -> pa.Schema:
        """Returns the columns of a file."""

    def open_group(
        self, number: int, group: int, columns: Sequence[str]
    ) -> contextlib.AbstractContextManager[tuple[pq.ParquetFile, Pread]]:
        """Opens a file to read columns of a row group: with pyarrow, and as bytes."""

    def ranges(self, number: int, group: int, columns: Sequence[str]) -> list[ByteRange]:
        """Returns what `open_group` will ask a store for; nothing if the files lie on this machine."""


class LocalParquetFiles:
    """Files on this machine, all of which a process opens when it first reads one."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._opened: Handle[_OpenedParquet] = Handle(functools.partial(_OpenedParquet, names))

    def metadata(self, number: int) -> Any:
        return self._opened.get().files[number].metadata

    def schema(self, number: int) -> pa.Schema:
        return self._opened.get().files[number].schema_arrow

    @contextlib.contextmanager
    def open_group(self, number: int, group: int, columns: Sequence[str]) -> Iterator[tuple[pq.ParquetFile, Pread]]:
        file = self._opened.get().files[number]
        with open(self.names[number], "rb", buffering=0) as stream:
            descriptor = stream.fileno()
            yield file, lambda count, start: os.pread(descriptor, count, start)

    def ranges(self, number: int, group: int, columns: Sequence[str]) -> list[ByteRange]:
        return []

    def close(self) -> None:
        """Closes the files; they are opened again when they are read."""
        self._opened = Handle(functools.partial(_OpenedParquet, self.names))


class RemoteParquetFiles:
    """Files in a store. Their footers come along into other processes, so that they are fetched once."""

    def __init__(self, names: Sequence[str]) -> None:
        """names: their URLs. Fetches the footers of all, many at a time."""
        self.names = names
        self._files = RemoteFiles.at(names)
        self._metadata: list[Any] = []
        self._schemas: list[pa.Schema] = []
        self._leaves: dict[int, dict[str, list[int]]] = {}

        ends = []
        for number in range(len(names)):
            size = int(self._files.sizes[number])
            ends.append(self._files.part(number, max(size - FOOTER, 0), size))

        for number, (end, data) in enumerate(zip(ends, read_ranges(ends), strict=True)):
            file = RangeFile(self._files, number)
            file.keep(end, data)
            with _failures_named(names[number]):
                opened = _open(file, None)
                self._metadata.append(opened.metadata)
                self._schemas.append(opened.schema_arrow)

    def metadata(self, number: int) -> Any:
        return self._metadata[number]

    def schema(self, number: int) -> pa.Schema:
        return self._schemas[number]

    @contextlib.contextmanager
    def open_group(self, number: int, group: int, columns: Sequence[str]) -> Iterator[tuple[pq.ParquetFile, Pread]]:
        """See `ParquetFiles.open_group`. The columns are fetched at once, as they are stored."""
        file = RangeFile(self._files, number)
        file.hold(self.ranges(number, group, columns))
        yield _open(file, self._metadata[number]), file.pread

    def ranges(self, number: int, group: int, columns: Sequence[str]) -> list[ByteRange]:
        metadata = self._metadata[number]
        if number not in self._leaves:
            self._leaves[number] = leaves_of(metadata)

        about = metadata.row_group(group)
        found = []
        for name in columns:
            for leaf in self._leaves[number].get(name, ()):
                column = about.column(leaf)
                start = start_of(column)
                found.append(self._files.part(number, start, start + column.total_compressed_size))

        return found


def _open(source: Any, metadata: Any) -> pq.ParquetFile:
    if isinstance(source, RangeFile):
        source = pa.PythonFile(source, mode="r")
    return pq.ParquetFile(source, metadata=metadata, memory_map=False, thrift_string_size_limit=LONGEST_NAME)


class _OpenedParquet:
    """Files that one process has open."""

    def __init__(self, names: Sequence[str]) -> None:
        self.files: list[pq.ParquetFile] = []
        for name in names:
            with _failures_named(name):
                self.files.append(_open(name, None))

    def __del__(self) -> None:
        # A thread of pyarrow that has read ahead may hold a file a moment longer than we do.
        for file in self.files:
            file.close()


@contextlib.contextmanager
def _failures_named(name: str) -> Iterator[None]:
    """Has failures of pyarrow name the file."""
    try:
        yield
    except FAILURES as error:
        raise unreadable(name, "Parquet file", error) from error
    except OSError as error:
        if error.filename is None and not isinstance(error, (PermissionError, FileNotFoundError)):
            raise unreadable(name, "Parquet file", error) from error
        raise
