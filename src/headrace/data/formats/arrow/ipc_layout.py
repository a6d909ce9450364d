"""Where the columns of Arrow's record batches lie in a file: found from the messages, without a byte of their bodies.

Sources: Arrow's `format/Message.fbs`, `format/Schema.fbs` and `format/File.fbs`, and "Buffer Listing for Each Layout"
of the columnar format. The messages may be damaged or hostile: nothing that they say is used before it was checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.data.formats.fetched_whole import NotByRanges
from headrace.data.formats.guards import arrow_messages
from headrace.data.formats.guards.arrow_messages import BATCH, DICTIONARY, MARK, SCHEMA

MAGIC = b"ARROW1"
LONGEST = 64 << 20
"""Bytes that what lies in front of a body may have."""

TAIL = 64 << 10
"""Bytes at the end of a file that are fetched at once: they hold the footer of nearly all."""


class ByteSpan(NamedTuple):
    """Bytes of a file, from `start` on."""

    start: int
    size: int


class FileBytes(Protocol):
    """Reads a file of a store."""

    size: int

    def pread(self, count: int, start: int) -> memoryview:
        """Returns up to `count` bytes from byte `start` on; fewer only at the end of the file."""

    def pread_many(self, spans: Sequence[ByteSpan]) -> list[memoryview]:
        """Returns the bytes of spans, which are read at the same time."""


class IpcMessage(NamedTuple):
    """A message of an Arrow file, and where its body lies."""

    kind: int
    head: bytes
    """What lies in front of the body, from the mark on."""

    table: int
    """Where the root of its table is found in `head`."""

    body: int
    """Byte of the file at which the body begins."""

    length: int
    """Bytes of the body."""


class ColumnLayout(NamedTuple):
    """Where a column of a record batch lies."""

    lengths: list[int]
    """Of the array and its children, each in front of its own children."""

    has_nulls: bool
    """Whether any of them has empty places, or may have."""

    buffers: list[ByteSpan]


class BatchLayout(NamedTuple):
    """Where a record batch lies."""

    message: IpcMessage
    rows: int
    compressed: bool
    columns: list[ColumnLayout]
    """In the order of the schema."""


def read_messages(file: FileBytes) -> Iterator[IpcMessage]:
    """Yields the messages of a file of either form: the schema, dictionaries, record batches.

    Those of the stream form are found one after the other, those of the file form by its footer, at once. Raises
    `ValueError` or `struct.error` where they make no sense, and `StorageError`.
    """
    if bytes(file.pread(len(MAGIC), 0)) != MAGIC:
        yield from _in_order(file)
        return

    try:
        first = _message_at(file, 8)
    except (struct.error, ValueError) as error:
        # polars writes the schema into the footer alone.
        raise NotByRanges from error
    if not first.head:
        raise NotByRanges

    yield first
    end = file.size - 10
    if end < 8:
        raise ValueError("a file that ends in front of its footer")

    tail = file.pread(min(TAIL, file.size), max(file.size - TAIL, 0))
    (size,) = struct.unpack_from("<i", tail, len(tail) - 10)
    if bytes(tail[-6:]) != MAGIC or not 0 < size <= min(end, LONGEST):
        raise ValueError(f"a footer of {size:,} bytes in a file of {file.size:,}")

    spans = []
    for start, head, length in arrow_messages.blocks_in(bytes(file.pread(size, end - size))):
        if not 0 <= start <= start + head + length <= end or not 8 <= head <= LONGEST:
            raise ValueError(f"a message of {head:,} and {length:,} bytes at byte {start:,} of {file.size:,}")
        spans.append(ByteSpan(start, head))

    for span, data in zip(spans, file.pread_many(spans), strict=True):
        yield _message(data, span.start, file.size)


def _in_order(file: FileBytes) -> Iterator[IpcMessage]:
    at = 0
    while at + 8 <= file.size:
        message = _message_at(file, at)
        if not message.head:
            return
        yield message
        at = message.body + message.length


def _message_at(file: FileBytes, start: int) -> IpcMessage:
    """Returns the message at a byte; one without a head at the end of a stream."""
    table, size = _size_of_head(file.pread(8, start))
    if size <= 0:
        return IpcMessage(0, b"", 0, start, 0)
    if size > LONGEST or start + table + size > file.size:
        raise ValueError(f"a message of {size:,} bytes at byte {start:,} of {file.size:,}")
    return _message(file.pread(table + size, start), start, file.size)


def _size_of_head(data: memoryview) -> tuple[int, int]:
    """Returns where the table of a message begins, and how many bytes it has."""
    # Arrow before 0.15 wrote no mark in front of the size.
    marked = bytes(data[:4]) == MARK
    (size,) = struct.unpack_from("<i", data, 4 * marked)
    return 4 + 4 * marked, int(size)


def _message(data: memoryview, start: int, file_size: int) -> IpcMessage:
    """Returns the message whose head is given, which begins at a byte of a file."""
    table, size = _size_of_head(data)
    if not 0 < size <= len(data) - table:
        raise ValueError(f"a message of {size:,} bytes at byte {start:,}")

    head = bytes(data[: table + size])
    kind, length = arrow_messages.kind_and_body(head, table)
    body = start + table + size
    if kind not in (SCHEMA, DICTIONARY, BATCH) or not 0 <= length <= file_size - body:
        raise ValueError(f"a message of kind {kind} with {length:,} bytes at byte {start:,} of {file_size:,}")
    return IpcMessage(kind, head, table, body, length)


def batch_layout(message: IpcMessage, schema: pa.Schema) -> BatchLayout:
    """Returns where a record batch lies. Raises `ValueError` or `struct.error` where its message makes no sense."""
    about = arrow_messages.record_batch(message.head, message.table)
    walk = _Walk(about, message)
    columns = []
    for field in schema:
        columns.append(walk.column(field.type))

    if walk.rest():
        raise ValueError("a record batch of more columns than the schema has")
    if about.rows < 0 or any(column.lengths[0] != about.rows for column in columns):
        raise ValueError(f"columns of other lengths in a record batch of {about.rows:,} rows")
    return BatchLayout(message, about.rows, about.compressed, columns)


class _Walk:
    """Takes the arrays and buffers of a record batch, column after column."""

    def __init__(self, about: arrow_messages.RecordBatch, message: IpcMessage) -> None:
        self._nodes = iter(about.nodes)
        self._buffers = iter(about.buffers)
        self._variadic = iter(about.variadic)
        self._message = message

    def column(self, kind: pa.DataType) -> ColumnLayout:
        lengths: list[int] = []
        nulls: list[int] = []
        buffers: list[ByteSpan] = []
        self._take(kind, lengths, nulls, buffers)
        return ColumnLayout(lengths, any(nulls), buffers)

    def rest(self) -> bool:
        """Tells whether something was not taken."""
        return next(self._nodes, None) is not None or next(self._buffers, None) is not None

    def _take(self, kind: pa.DataType, lengths: list[int], nulls: list[int], buffers: list[ByteSpan]) -> None:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            kind = kind.index_type

        length, empty = self._next(self._nodes)
        if length < 0:
            raise ValueError(f"an array of {length:,} entries")
        lengths.append(length)
        nulls.append(empty)
        for _ in range(_buffer_count(kind)):
            buffers.append(self._buffer())

        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            for _ in range(min(next(self._variadic, 0), 1 << 20)):
                buffers.append(self._buffer())

        for number in range(kind.num_fields):
            self._take(kind.field(number).type, lengths, nulls, buffers)

    def _buffer(self) -> ByteSpan:
        start, size = self._next(self._buffers)
        if not 0 <= start <= start + size <= self._message.length:
            raise ValueError(f"a buffer of {size:,} bytes at byte {start:,} of a body of {self._message.length:,}")
        return ByteSpan(self._message.body + start, size)

    def _next(self, pairs: Iterator[tuple[int, int]]) -> tuple[int, int]:
        found = next(pairs, None)
        if found is None:
            raise ValueError("a record batch of fewer columns than the schema has")
        return found


def _buffer_count(kind: pa.DataType) -> int:
    """Returns how many buffers an array of a type has, without those of its children, and of views the words."""
    types = pa.types
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        return 0
    if types.is_struct(kind) or types.is_fixed_size_list(kind):
        return 1
    if types.is_union(kind):
        if kind.mode == "dense":
            return 2
        return 1
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return 3
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return 3
    return 2
