"""Arrow files in a store: columns of plain memory are read by ranges, all others record batch by record batch.

Opening them reads what lies in front of the bodies of the record batches. In the form of a file the footer says where
that is. A stream has none: its messages are found one after the other, those of several files at the same time.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from headrace.core.errors import HeadraceError
from headrace.core.process.memory import machine_memory
from headrace.core.process.per_process import Handle
from headrace.data.formats.arrow.columns import check_decoded, from_arrow
from headrace.data.formats.arrow.exact_numbers import are_as_stored, is_time
from headrace.data.formats.arrow.field_types import field_from, schema_from
from headrace.data.formats.arrow.ipc_layout import (
    BatchLayout,
    ByteSpan,
    ColumnLayout,
    IpcMessage,
    batch_layout,
    read_messages,
)
from headrace.data.formats.columns import Array, Column, Keys
from headrace.data.formats.columns.byte_spans import Addresses, Units, exact_units
from headrace.data.formats.columns.grouping import grouped
from headrace.data.formats.columns.remote_arrays import FixedColumn, Pieces, RaggedColumn, StoredArray, read_units
from headrace.data.formats.columns.remote_reader import RemoteColumnsReader, StoredColumn
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.tables import BlockReader
from headrace.data.formats.fetched_whole import NotByRanges
from headrace.data.formats.guards.arrow_messages import BATCH, DICTIONARY, SCHEMA, is_big_endian, record_batch
from headrace.data.formats.guards.limits import FREE, allowed, check_unfolding, too_large
from headrace.data.formats.unreadable import unreadable
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.remote_files import RemoteFiles, read_ranges

FAILURES = (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError, TypeError, OSError, KeyError,
            struct.error)  # fmt: skip

AT_ONCE = 16
"""Files whose messages are looked for at a time."""

FIRST = 64 << 10
"""Bytes that are read at the beginning of a file."""

WINDOW = 16 << 10
"""Bytes that are read where a message is looked for."""

NEAR = 1 << 20
"""Bytes from one message to the next up to which it is quicker to read everything, `LONG` bytes at a time."""

LONG = 4 << 20

KEEP = 2 << 30
"""Bytes of decoded columns that a process keeps, at most a quarter of the machine's memory."""


class StoredTable(NamedTuple):
    """What was found out about the files of a table."""

    urls: Sequence[str]
    files: RemoteFiles
    schema: pa.Schema
    messages: list[list[IpcMessage]]
    """Of each file, the schema first."""

    batches: list[tuple[int, BatchLayout]]
    """Those that are not empty, each with the number of its file."""


class _HeadBytes:
    """Reads what lies between the bodies of a file. See `FileBytes`."""

    def __init__(self, files: RemoteFiles, number: int) -> None:
        self._files = files
        self._number = number
        self.size = int(files.sizes[number])
        self._at = 0
        self._data = memoryview(b"")

    def pread(self, count: int, start: int) -> memoryview:
        stop = min(start + count, self.size)
        if not self._at <= start <= stop <= self._at + len(self._data):
            window = WINDOW
            if start == 0:
                window = FIRST
            elif start == self._at:
                # The rest of something long.
                window = count
            elif 0 <= start - self._at < NEAR + len(self._data):
                window = LONG

            end = min(max(stop, start + window), self.size)
            self._data = self.pread_many([ByteSpan(start, end - start)])[0]
            self._at = start

        return self._data[start - self._at : stop - self._at]

    def pread_many(self, spans: Sequence[ByteSpan]) -> list[memoryview]:
        return read_ranges([self._files.part(self._number, span.start, span.start + span.size) for span in spans])


def read_table(urls: Sequence[str]) -> StoredTable:
    """Finds out where the record batches of files lie.

    Raises `FormatError` if a file is damaged or differs from the first, `NotByRanges` and `StorageError`.
    """
    files = RemoteFiles.at(urls)

    def read(number: int) -> tuple[pa.Schema, list[IpcMessage], list[BatchLayout]]:
        return _read_file(files, number, urls[number])

    messages = []
    batches = []
    first: pa.Schema | None = None
    with ThreadPoolExecutor(min(AT_ONCE, len(urls))) as threads:
        for number, (schema, found, layouts) in enumerate(threads.map(read, range(len(urls)))):
            if first is None:
                first = schema
            elif not schema.equals(first):
                # Columns of several types are put together in memory.
                raise NotByRanges

            messages.append(found)
            for layout in layouts:
                if layout.rows:
                    batches.append((number, layout))

    return StoredTable(urls, files, first, messages, batches)


def _read_file(files: RemoteFiles, number: int, url: str) -> tuple[pa.Schema, list[IpcMessage], list[BatchLayout]]:
    try:
        if files.sizes[number] == 0:
            raise ValueError("an empty file")
        messages = list(read_messages(_HeadBytes(files, number)))
        if not messages or messages[0].kind != SCHEMA:
            raise ValueError("a file that does not begin with a schema")
        if is_big_endian(messages[0].head, messages[0].table):
            raise NotByRanges

        schema = pa.ipc.read_schema(pa.py_buffer(messages[0].head))
        layouts = []
        for message in messages:
            if message.kind == BATCH:
                layouts.append(batch_layout(message, schema))

        return schema, messages, layouts
    except FAILURES as error:
        # What a store says, and what is a format's own error, says enough.
        if isinstance(error, HeadraceError):
            raise
        raise unreadable(url, "Arrow file", error) from error


def open_table(
    format_name: str, place: str, table: StoredTable, trust: bool, schema: Schema | None = None
) -> RemoteColumnsReader:
    """Returns a reader of a table. schema: the columns, if they are known. Raises `FormatError`."""
    rows = sum(layout.rows for _, layout in table.batches)
    stored = int(table.files.sizes.sum())
    if rows > FREE and rows > allowed(stored):
        raise too_large(place, f"{rows:,} samples", f"{allowed(stored):,} at most")

    if schema is None:
        schema = schema_from(table.schema, place)

    addresses = Addresses(table.files)
    columns: dict[str, StoredColumn] = {}
    others = []
    for field in schema:
        column = _column(field, table, addresses, place, len(schema))
        if column is None:
            others.append(field)
        else:
            columns[field.name] = column

    blocks = None
    if others:
        blocks = BatchBlocks(place, Schema(tuple(others)), table, addresses, trust)
    return RemoteColumnsReader(format_name, place, schema, rows, addresses, columns, blocks)


def _column(field: Field, table: StoredTable, addresses: Addresses, place: str, count: int) -> StoredColumn | None:
    """Returns a column that can be read by ranges; None for one that must be decoded."""
    index = table.schema.names.index(field.name)
    dtype = _plain_type(field, table.schema.field(index).type)
    if dtype is None:
        return None

    values = []
    offsets = []
    width = _offset_bytes(table.schema.field(index).type)
    for file, layout in table.batches:
        column = layout.columns[index]
        if layout.compressed or column.has_nulls:
            return None
        if field.kind == "fixed":
            values.append((file, *_values(column, layout.rows, field, dtype, table.urls[file])))
            continue

        # Arrow takes a list without offsets for an empty one.
        span = column.buffers[1]
        if span.size == 0:
            return None
        _check_buffer(span, (layout.rows + 1) * width, field, table.urls[file])
        offsets.append((file, span.start, layout.rows + 1))
        if field.kind == "ragged":
            values.append((file, *_values(column, column.lengths[1], field, dtype, table.urls[file])))
        else:
            values.append((file, column.buffers[2].start, column.buffers[2].size))

    shape = field.shape
    if field.kind in ("bytes", "text"):
        shape = ()

    stored = StoredArray(addresses, _pieces(values), dtype, shape)
    if field.kind == "fixed":
        return FixedColumn(field, stored, None, count)

    stored_offsets = StoredArray(addresses, _pieces(offsets), np.dtype(f"<i{width}"), ())
    return RaggedColumn(field, stored_offsets, stored, place, count)


def _pieces(found: Sequence[tuple[int, int, int]]) -> Pieces:
    numbers = np.array(found, np.int64).reshape(-1, 3)
    return Pieces(numbers[:, 0], numbers[:, 1], numbers[:, 2])


def _values(column: ColumnLayout, rows: int, field: Field, dtype: np.dtype[Any], url: str) -> tuple[int, int]:
    """Returns where values of one size begin in the file, and how many there are."""
    span = column.buffers[-1]
    _check_buffer(span, rows * dtype.itemsize * math.prod(field.shape), field, url)
    return span.start, rows


def _check_buffer(span: ByteSpan, needed: int, field: Field, url: str) -> None:
    if span.size < needed:
        error = ValueError(f"a buffer of {span.size:,} bytes instead of {needed:,} in column {field.name!r}")
        raise unreadable(url, "Arrow file", error)


def _plain_type(field: Field, kind: pa.DataType) -> np.dtype[Any] | None:
    """Returns the type of a column's values as they lie in the file; None if they must be decoded."""
    types = pa.types
    found = field_from(field.name, kind)
    if found is None or (found.kind, found.dtype, found.shape) != (field.kind, field.dtype, field.shape):
        return None
    if field.dtype.kind == "b" or types.is_dictionary(kind) or types.is_decimal(kind):
        return None
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return None
    if is_time(kind) and not are_as_stored(kind):
        return None
    if isinstance(kind, pa.FixedShapeTensorType) and kind.permutation:
        return None
    if types.is_struct(kind) or (
        isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.FixedShapeTensorType)
    ):
        return None
    return field.dtype.newbyteorder("<")


def _offset_bytes(kind: pa.DataType) -> int:
    if pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 8
    return 4


class _Batch(NamedTuple):
    """A record batch whose columns are decoded."""

    file: int
    message: IpcMessage
    compressed: bool
    buffers: dict[str, list[ByteSpan]]
    """Of each column; empty ones are left out."""

    dictionaries: int
    """How many dictionaries of the file come before it."""


class BatchBlocks(BlockReader):
    """Columns that are decoded record batch by record batch: only their buffers are read."""

    def __init__(self, place: str, schema: Schema, table: StoredTable, addresses: Addresses, trust: bool) -> None:
        """schema: of these columns."""
        lengths = [layout.rows for _, layout in table.batches]
        super().__init__(place, schema, lengths, min(KEEP, machine_memory() // 4))
        self._urls = table.urls
        self._addresses = addresses
        self._trust = trust
        self._numbers = {field.name: table.schema.names.index(field.name) for field in schema}
        self._schemas = [messages[0].head for messages in table.messages]
        self._dictionary_messages = []
        for messages in table.messages:
            self._dictionary_messages.append([message for message in messages if message.kind == DICTIONARY])

        self._batches = []
        for file, layout in table.batches:
            buffers = {}
            for name, number in self._numbers.items():
                buffers[name] = [span for span in layout.columns[number].buffers if span.size]

            # In a stream a dictionary may be replaced between two batches. In a file all of them come first.
            before = 0
            for message in self._dictionary_messages[file]:
                before += message.body < layout.message.body or not _is_stream(table.messages[file])

            self._batches.append(_Batch(file, layout.message, layout.compressed, buffers, before))

        self.nbytes = 0
        for batch in self._batches:
            for spans in batch.buffers.values():
                self.nbytes += sum(span.size for span in spans)

        self._dictionaries: Handle[dict[int, list[Array]]] = Handle(dict)

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        """See `RemoteReader.byte_ranges`. Dictionaries, which are read once and kept, are not among them."""
        found = []
        for number, _, _ in grouped(keys, self.starts):
            found += self._units(self._batches[number], names).ranges(self._addresses)

        return found

    def read_block(self, number: int, names: Sequence[str]) -> Mapping[str, Column]:
        batch = self._batches[number]
        url = self._urls[batch.file]
        try:
            decoded = self._decoded(batch, names)
        except FAILURES as error:
            if isinstance(error, HeadraceError):
                raise
            raise unreadable(url, "Arrow file", error) from error

        columns = {}
        for name in names:
            chunk = decoded.column(decoded.schema.names.index(name))
            check_decoded([chunk], url, self._trust)
            columns[name] = from_arrow(self.schema[name], chunk, url)

        return columns

    def _units(self, batch: _Batch, names: Sequence[str]) -> Units:
        spans = []
        for name in names:
            spans += batch.buffers[name]

        numbers = np.array(spans, np.int64).reshape(-1, 2)
        starts = self._addresses.of(batch.file, numbers[:, 0])
        return exact_units(starts, starts + numbers[:, 1])

    def _decoded(self, batch: _Batch, names: Sequence[str]) -> pa.RecordBatch:
        """Returns a record batch of some columns, from a stream in memory that holds nothing else."""
        units = self._units(batch, names)
        (data,) = read_units([units], self._addresses)
        parts: list[bytes | Array] = [self._schemas[batch.file]]
        messages = self._dictionary_messages[batch.file][: batch.dictionaries]
        for message, body in zip(messages, self._dictionary_bodies(batch.file), strict=False):
            self._check_unfolding(message, body, self._urls[batch.file])
            parts += [message.head, body]

        # Memory that is not written to takes none: the buffers of all other columns stay empty.
        begin = sum(map(len, parts)) + len(batch.message.head)
        stream = np.zeros(begin + batch.message.length, np.uint8)
        at = 0
        for part in [*parts, batch.message.head]:
            stream[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)

        for name in names:
            for span in batch.buffers[name]:
                address = self._addresses.of(batch.file, np.array([span.start]))
                place = int(units.places(address)[0])
                start = begin + span.start - batch.message.body
                stream[start : start + span.size] = data[place : place + span.size]

        if batch.compressed:
            self._check_unfolding(batch.message, stream[begin:], self._urls[batch.file])

        fields = sorted(self._numbers[name] for name in names)
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        decoded = pa.ipc.open_stream(pa.py_buffer(stream), options=options).read_next_batch()
        decoded.validate()
        return decoded

    def _dictionary_bodies(self, file: int) -> list[Array]:
        """Returns the bodies of a file's dictionaries, which every process reads once."""
        kept = self._dictionaries.get()
        # Two threads may come here at once; both read the same, and either may stay.
        if file not in kept:
            units = []
            for message in self._dictionary_messages[file]:
                start = self._addresses.of(file, np.array([message.body]))
                filled = np.array([message.length > 0])
                units.append(exact_units(start[filled], (start + message.length)[filled]))
            kept[file] = read_units(units, self._addresses)

        return kept[file]

    def _check_unfolding(self, message: IpcMessage, body: Array, url: str) -> None:
        """Raises `FormatError` if the buffers of a body that was read would unfold to far more than they hold."""
        about = record_batch(message.head, message.table)
        if not about.compressed:
            return

        total = 0
        stored = 0
        for start, size in about.buffers:
            # A compressed buffer begins with its size as an int64; -1 says that it was left as it is. Those that were
            # not read are zeros here.
            unfolded = int.from_bytes(body[start : start + 8].tobytes(), "little", signed=True)
            if size >= 8 and unfolded != 0:
                total += max(unfolded, 0)
                stored += size

        check_unfolding(url, "compressed buffers in a record batch", total, stored, self._trust)


def _is_stream(messages: Sequence[IpcMessage]) -> bool:
    """Tells whether messages are those of a stream, whose schema lies at the very beginning."""
    first = messages[0]
    return first.body == len(first.head)
