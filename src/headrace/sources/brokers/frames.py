"""Frames: how a stream of bytes is cut into records. Pure: bytes go in as they come, records come out."""

from __future__ import annotations

import struct
from typing import Literal, Protocol

from headrace.core.errors import wrong_argument
from headrace.sources.brokers.frame_error import FrameError, too_large

Frame = Literal["lines", "length", "arrow"]

LARGEST = 128 << 20
"""Bytes of a frame, unless the user says otherwise."""

LENGTH = struct.Struct(">I")


class Frames(Protocol):
    """Cuts the bytes of one connection."""

    error: FrameError | None
    """What is wrong with the bytes behind the last record that was returned. Nothing more can be cut then."""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the records that these bytes complete. Sets `error` if what follows is not framed as it should be."""

    @property
    def unfinished(self) -> int:
        """Bytes of a record that is not complete."""


def frames(frame: Frame, largest: int) -> Frames:
    """Returns what cuts the bytes of a new connection. largest: bytes of a frame. Raises `UsageError`."""
    if frame == "lines":
        return Lines(largest)
    if frame == "length":
        return Lengths(largest)
    if frame == "arrow":
        from headrace.sources.brokers.arrow_frames import ArrowStreams

        return ArrowStreams(largest)
    raise wrong_argument("frame", frame, '"lines", "length" or "arrow"')


class Lines:
    """A record is a line, without its end: "\\n" or "\\r\\n". Empty lines are none: they keep connections alive."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._begun: list[bytes] = []
        self._size = 0
        self.error: FrameError | None = None

    @property
    def unfinished(self) -> int:
        """Bytes of the line that is not complete."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that these bytes end, without the empty ones."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._begun:
                lines[0] = b"".join((*self._begun, lines[0]))
                self._begun.clear()
            self._size = 0
            if b"\r" in data or lines[0].endswith(b"\r"):
                lines = [line.removesuffix(b"\r") for line in lines]
            # A line that is longer than the data has begun before them.
            if len(lines[0]) > self._largest:
                self.error = too_large(len(lines[0]), self._largest)
                return []
            if b"" in lines:
                lines = [line for line in lines if line]

        if rest:
            self._begun.append(rest)
            self._size += len(rest)
            if self._size > self._largest:
                self.error = too_large(self._size, self._largest)
        return lines


class Lengths:
    """In front of each record stands its length: four bytes, the highest first."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._data = bytearray()
        self.error: FrameError | None = None

    @property
    def unfinished(self) -> int:
        """Bytes of the frame that is not complete."""
        return len(self._data)

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the records that these bytes complete."""
        self._data += data
        records = []
        offset = 0
        size = len(self._data)
        with memoryview(self._data) as view:
            while offset + LENGTH.size <= size:
                length = LENGTH.unpack_from(view, offset)[0]
                if length > self._largest:
                    self.error = too_large(length, self._largest)
                    break
                end = offset + LENGTH.size + length
                if end > size:
                    break
                records.append(bytes(view[offset + LENGTH.size : end]))
                offset = end
        del self._data[:offset]
        return records
