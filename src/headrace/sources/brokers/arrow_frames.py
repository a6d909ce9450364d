"""Streams of Arrow's IPC format: a record is one row, as a stream of its own.

So a position is that of a row, and each record can be decoded alone, by `pyarrow.ipc.open_stream`. The price is the
schema in each record, some hundred bytes for a few columns. Dictionaries are sent whole with each row that uses them.

Source of the format: "Serialization and Interprocess Communication (IPC)" of Apache Arrow, encapsulated messages:
0xFFFFFFFF, the bytes of the metadata (int32), the metadata (a flatbuffer), the body. Zero bytes of metadata end a
stream; another one may follow on the same connection.
"""

from __future__ import annotations

import io
import struct

import pyarrow as pa

from headrace.sources.brokers.frame_error import FrameError, too_large

PREFIX = struct.Struct("<Ii")
CONTINUATION = 0xFFFFFFFF
RECORD_BATCH = 3
BODY_LENGTH = 3
HEADER_TYPE = 1
"""Fields of the flatbuffer's table `Message`, by their place."""


class ArrowStreams:
    """Cuts the streams of one connection into rows."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._data = bytearray()
        self.error: FrameError | None = None
        self._feed = _Whole()
        self._reader: pa.RecordBatchStreamReader | None = None

    @property
    def unfinished(self) -> int:
        """Bytes of the message that is not complete."""
        return len(self._data)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the rows of the record batches that these bytes complete."""
        self._data += data
        rows: list[bytes] = []
        try:
            while True:
                size = self._size_of_next()
                if size is None or size > len(self._data):
                    break
                message = bytes(self._data[:size])
                del self._data[:size]
                rows += self._rows_of(message)
        except FrameError as error:
            self.error = error
        except (pa.ArrowException, struct.error, IndexError, OSError) as error:
            self.error = FrameError(f"no stream of Arrow's IPC format ({error})")
        return rows

    def _size_of_next(self) -> int | None:
        """Returns the bytes of the message that comes next; None while that is not known."""
        if len(self._data) < PREFIX.size:
            return None
        mark, metadata = PREFIX.unpack_from(self._data)
        if mark != CONTINUATION or metadata < 0:
            raise FrameError("no stream of Arrow's IPC format")
        if metadata > self._largest:
            raise too_large(metadata, self._largest)
        if len(self._data) < PREFIX.size + metadata:
            return None

        size: int = PREFIX.size + metadata
        if metadata:
            size += _number_in(self._data, PREFIX.size, BODY_LENGTH, "<q")
        if not 0 < size <= self._largest:
            raise too_large(size, self._largest)
        return size

    def _rows_of(self, message: bytes) -> list[bytes]:
        """Returns the rows of a whole message: none if it is a schema, a dictionary, or the end of a stream."""
        if len(message) == PREFIX.size:
            self._reader = None
            return []

        self._feed.put(message)
        if self._reader is None:
            # The first message of a stream is its schema.
            self._reader = pa.ipc.open_stream(self._feed)
            return []
        if _number_in(message, PREFIX.size, HEADER_TYPE, "<B") != RECORD_BATCH:
            return []

        batch = self._reader.read_next_batch()
        return [_stream_of(batch.slice(number, 1)) for number in range(batch.num_rows)]


class _Whole(io.RawIOBase):
    """The file that pyarrow reads from: messages that are complete, so that it never meets the end within one."""

    def __init__(self) -> None:
        self._data = bytearray()

    def put(self, message: bytes) -> None:
        self._data += message

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = len(self._data)
        found = bytes(self._data[:size])
        del self._data[:size]
        return found


def _stream_of(row: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _number_in(data: bytes | bytearray, start: int, field: int, form: str) -> int:
    """Returns a number of the flatbuffer that begins at `start`; 0 if it has its default value.

    A flatbuffer begins with the offset of its table. That begins with the distance back to its vtable, which holds two
    sizes and then the offset of each field in the table, or 0.
    """
    table = start + struct.unpack_from("<I", data, start)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    entry = 4 + 2 * field
    if vtable < 0 or entry + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + entry)[0]
    if offset == 0:
        return 0
    number: int = struct.unpack_from(form, data, table + offset)[0]
    return number
