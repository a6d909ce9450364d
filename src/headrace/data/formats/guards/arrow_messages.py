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

from headrace.data.formats.guards.limits import check_unfolding

MARK = b"\xff\xff\xff\xff"
DICTIONARY, BATCH = 2, 3
"""Kinds of messages with buffers."""

Data = mmap.mmap


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

        total = sum(_unfolded(data, start, body) for start, body in messages)
        check_unfolding(file, "compressed buffers in a file", total, len(data))


def _in_order(data: Data) -> Iterator[tuple[int, int]]:
    """Yields where the messages of a stream begin, and their bodies: (table, body)."""
    at = 0
    while at + 8 <= len(data):
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
    (size,) = struct.unpack_from("<i", data, len(data) - 10)
    footer = _root(data, len(data) - 10 - size)
    for field in (2, 3):  # dictionaries, recordBatches
        first, count = _vector(data, footer, field)
        for number in range(count):
            at, length = struct.unpack_from("<qi", data, first + 24 * number)
            yield at + 4 + 4 * (data[at : at + 4] == MARK), at + length


def _unfolded(data: Data, start: int, body: int) -> int:
    """Returns the bytes that the compressed buffers of a message say they unfold to."""
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
        if length >= 8:
            total += max(struct.unpack_from("<q", data, body + at)[0], 0)  # -1: as it is

    return total


def _root(data: Data, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: Data, table: int, field: int) -> int:
    """Returns where a field of a table lies; 0 if it is not there."""
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


def _vector(data: Data, table: int, field: int) -> tuple[int, int]:
    """Returns where a vector begins, and how many entries it has. Raises `ValueError` if it cannot be that long."""
    at = _table(data, table, field)
    if at:
        count = int(struct.unpack_from("<I", data, at)[0])
    else:
        count = 0

    if at + 4 + 16 * count > len(data):
        raise ValueError(f"a list of {count:,} entries at byte {at:,} of {len(data):,}")
    return at + 4, count
