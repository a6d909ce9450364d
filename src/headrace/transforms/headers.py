"""Sizes of JPEG and PNG images from their first bytes, without a decoder.

Sources: ITU-T T.81 (JPEG), annex B; W3C, Portable Network Graphics (third edition), sections 5.2 and 11.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

JPEG_START, JPEG_END = b"\xff\xd8", b"\xff\xd9"
PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"

FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of a frame header; C4, C8 and CC are tables and a reserved word."""

BARE = frozenset((0x01, *range(0xD0, 0xD8)))
"""Markers without a length."""

SCAN, END = 0xDA, 0xD9


class Header(NamedTuple):
    """What the first bytes of an image say. Sizes in pixels.

    plain: gray or RGB (also as YCbCr) with 8 bits a channel; every decoder makes the same pixels of it.
    """

    format: Literal["jpeg", "png"]
    height: int
    width: int
    plain: bool


def read_header(data: memoryview) -> Header | None:
    """Returns the header of a JPEG or PNG; None for all else, and if `data` (bytes, flat) end before it does."""
    if bytes(data[:2]) == JPEG_START:
        return _jpeg(data)
    if bytes(data[:8]) == PNG_START:
        return _png(data)
    return None


def is_complete(data: memoryview, header: Header) -> bool:
    """Tells whether an image ends as its format asks for, so that nothing was cut off; zeros may follow."""
    last = bytes(data[-64:]).rstrip(b"\0")
    return last.endswith(JPEG_END if header.format == "jpeg" else PNG_END)


def segments(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yields (marker, place) for each segment of a JPEG to its first scan, which is the last one.

    place: of the byte 0xFF before the marker, which is followed by at least two bytes.
    """
    place = 2
    end = len(data)
    while place + 3 < end and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF or marker in BARE:  # filling, or a marker alone
            place += 1 if marker == 0xFF else 2
            continue

        yield marker, place
        if marker in (SCAN, END):
            return
        place += 2 + number_at(data, place + 2)


def _jpeg(data: memoryview) -> Header | None:
    for marker, place in segments(data):
        if marker in FRAMES and place + 9 < len(data):
            precision = data[place + 4]
            channels = data[place + 9]
            height = number_at(data, place + 5)
            width = number_at(data, place + 7)
            plain = precision == 8 and channels in (1, 3)
            if height and width:
                return Header("jpeg", height, width, plain)
            return None

    return None


def _png(data: memoryview) -> Header | None:
    if len(data) < 26 or bytes(data[12:16]) != b"IHDR":
        return None

    width = int.from_bytes(data[16:20], "big")
    height = int.from_bytes(data[20:24], "big")
    depth = data[24]
    color = data[25]
    plain = depth == 8 and color in (0, 2)
    if height and width:
        return Header("png", height, width, plain)
    return None


def number_at(data: memoryview, place: int) -> int:
    """Returns a number of two bytes."""
    return data[place] << 8 | data[place + 1]
