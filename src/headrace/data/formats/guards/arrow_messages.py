"""How much an Arrow file would take once its compressed buffers are unfolded, before Arrow does it.

Reads what lies in front of each record batch, a table in the form of FlatBuffers, and the first eight bytes of each
compressed buffer, which say how long it is without. Sources: Arrow's `format/Message.fbs`, `format/File.fbs` and
"IPC Buffer Compression"; FlatBuffers' "Internals".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.data.formats.guards.limits import check_unfolding

MARK = b"\xff\xff\xff\xff"
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
"""Kinds of messages; the last two have buffers."""

Data = mmap.mmap | bytes


class RecordBatch(NamedTuple):
    """What the message of a record batch says."""

    rows: int
    nodes: list[tuple[int, int]]
    """Of each array: its length, and how many of its places are empty."""

    buffers: list[tuple[int, int]]
    """Of each buffer: where it begins in the body, and its bytes."""

    compressed: bool
    variadic: list[int]
    """How many buffers of words each column of views has."""


def check_compressed(file: str | Path, trust: bool) -> None:
    """Raises `FormatError` if a file's compressed buffers would take far more memory than the file.

    Raises `ValueError` or `struct.error` where its messages make no sense, and `OSError`.
    """
    if trust or Path(file).stat().st_size == 0:
        return

    with Path(file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] == b"ARROW1":
            messages = _in_footer(data)
        else:
            messages = _in_order(data)

        total = 0
        for start, body in messages:
            total += _unfolded(data, start, body)

        check_unfolding(file, "compressed buffers in a file", total, len(data))


def _in_order(data: Data) -> Iterator[tuple[int, int]]:
    """Yields where the messages of a stream begin, and their bodies: (table, body)."""
    at = 0
    while at + 8 <= len(data):
        # Arrow before 0.15 wrote no mark in front of the size; the encapsulated message is the same behind it.
        marked = data[at : at + 4] == MARK
        (size,) = struct.unpack_from("<i", data, at + 4 * marked)
        start = at + 4 + 4 * marked
        if size <= 0:
            return
        yield start, start + size
        length = _number(data, _root(data, start), 3, "<q")
        if length < 0:
            raise ValueError(f"a message of {length:,} bytes at byte {at:,}")
        at = start + size + length


def _in_footer(data: Data) -> Iterator[tuple[int, int]]:
    """Yields the same for the messages that the footer of a file names."""
    # A file ends in the footer, its size as an int32, and `ARROW1`: ten bytes behind the footer.
    (size,) = struct.unpack_from("<i", data, len(data) - 10)
    for at, length, _ in _blocks(data, len(data) - 10 - size):
        yield at + 4 + 4 * (data[at : at + 4] == MARK), at + length


def blocks_in(footer: bytes) -> list[tuple[int, int, int]]:
    """Returns where the messages lie that a footer names: (first byte, bytes in front of the body, bytes of the body).

    Dictionaries come first. Raises `ValueError` or `struct.error` where the footer makes no sense.
    """
    return list(_blocks(footer, 0))


def _blocks(data: Data, start: int) -> Iterator[tuple[int, int, int]]:
    footer = _root(data, start)
    # Fields 2 and 3 of the footer are `dictionaries` and `recordBatches`, vectors of `Block` of 24 bytes each: offset
    # (int64), length of the message (int32, padded to 8 bytes), length of the body (int64).
    for field in (2, 3):
        first, count = _vector(data, footer, field)
        for number in range(count):
            yield struct.unpack_from("<qi4xq", data, first + 24 * number)


def kind_and_body(data: bytes, start: int) -> tuple[int, int]:
    """Returns the kind of a message and the bytes of its body. start: where the root of its table is found."""
    message = _root(data, start)
    return _number(data, message, 1, "<B"), _number(data, message, 3, "<q")


def is_big_endian(data: bytes, start: int) -> bool:
    """Tells whether the message of a schema says so of the numbers. start: where the root of its table is found."""
    return _number(data, _table(data, _root(data, start), 2), 0, "<h") != 0


def record_batch(data: bytes, start: int) -> RecordBatch:
    """Returns what the message of a record batch, or of a dictionary, says. start: where its root is found.

    Raises `ValueError` or `struct.error` where it makes no sense.
    """
    message = _root(data, start)
    batch = _table(data, message, 2)
    if batch and _number(data, message, 1, "<B") == DICTIONARY:
        batch = _table(data, batch, 1)
    if not batch:
        raise ValueError("a message without a record batch")

    # `RecordBatch`: length, nodes, buffers, compression, variadicBufferCounts.
    variadic = []
    first, count = _vector(data, batch, 4, 8)
    for (number,) in struct.iter_unpack("<q", data[first : first + 8 * count]):
        variadic.append(number)

    nodes = _pairs(data, batch, 1)
    buffers = _pairs(data, batch, 2)
    return RecordBatch(_number(data, batch, 0, "<q"), nodes, buffers, bool(_table(data, batch, 3)), variadic)


def _pairs(data: bytes, table: int, field: int) -> list[tuple[int, int]]:
    first, count = _vector(data, table, field)
    return list(struct.iter_unpack("<qq", data[first : first + 16 * count]))


def _unfolded(data: Data, start: int, body: int) -> int:
    """Returns the bytes that the compressed buffers of a message say they unfold to."""
    # `Message`: field 1 is the kind, 2 the header. `DictionaryBatch`: field 1 is its batch. `RecordBatch`: field 2
    # holds the buffers (offset and length, int64 each), and 3 the compression, without which there is nothing to
    # unfold.
    message = _root(data, start)
    kind = _number(data, message, 1, "<B")
    batch = _table(data, message, 2)
    if kind == DICTIONARY and batch:
        batch = _table(data, batch, 1)
    if kind not in (DICTIONARY, BATCH) or not batch or not _table(data, batch, 3):
        return 0

    first, count = _vector(data, batch, 2)
    total = 0
    for at, length in struct.iter_unpack("<qq", data[first : first + 16 * count]):
        # A compressed buffer begins with its size as an int64; -1 says that it was left as it is.
        if length >= 8:
            total += max(struct.unpack_from("<q", data, body + at)[0], 0)

    return total


def _root(data: Data, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: Data, table: int, field: int) -> int:
    """Returns where a field of a table lies; 0 if it is not there."""
    # A table begins with how far in front of it its vtable lies: the size of that, the size of the table, and for each
    # field its offset in the table, all uint16; 0 for a field that is not there.
    about = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, about)
    if 4 + 2 * field >= size:
        return 0

    (offset,) = struct.unpack_from("<H", data, about + 4 + 2 * field)
    if offset:
        return table + int(offset)
    return 0


def _number(data: Data, table: int, field: int, kind: str) -> int:
    at = _field(data, table, field)
    if at:
        return int(struct.unpack_from(kind, data, at)[0])
    return 0


def _table(data: Data, table: int, field: int) -> int:
    at = _field(data, table, field)
    if at:
        return _root(data, at)
    return 0


def _vector(data: Data, table: int, field: int, entry: int = 16) -> tuple[int, int]:
    """Returns where a vector begins, and how many entries it has. Raises `ValueError` if it cannot be that long.

    entry: bytes of an entry, at least.
    """
    at = _table(data, table, field)
    if at:
        count = int(struct.unpack_from("<I", data, at)[0])
    else:
        count = 0

    if count and at + 4 + entry * count > len(data):
        raise ValueError(f"a list of {count:,} entries at byte {at:,} of {len(data):,}")
    return at + 4, count
