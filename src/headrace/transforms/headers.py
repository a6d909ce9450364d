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


class ImageHeader(NamedTuple):
    """What the first bytes of an image say. Sizes in pixels.

    plain: gray or RGB (also as YCbCr) with 8 bits a channel; every decoder makes the same pixels of it.
    """

    format: Literal["jpeg", "png"]
    height: int
    width: int
    plain: bool


def read_header(data: memoryview) -> ImageHeader | None:
    """Returns the header of a JPEG or PNG; None for all else, and if `data` (bytes, flat) end before it does."""
    if bytes(data[:2]) == JPEG_START:
        return _jpeg(data)
    if bytes(data[:8]) == PNG_START:
        return _png(data)
    return None


def is_complete(data: memoryview, header: ImageHeader) -> bool:
    """Tells whether an image ends as its format asks for, so that nothing was cut off; zeros may follow."""
    last = bytes(data[-64:]).rstrip(b"\0")
    if header.format == "jpeg":
        ending = JPEG_END
    else:
        ending = PNG_END

    return last.endswith(ending)


def segments(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yields (marker, offset) for each segment of a JPEG to its first scan, which is the last one.

    offset: of the byte 0xFF before the marker, which is followed by at least two bytes.
    """
    offset = 2
    end = len(data)
    while offset + 3 < end and data[offset] == 0xFF:
        marker = data[offset + 1]
        # B.1.1.2: any number of bytes 0xFF may stand in front of a marker.
        if marker == 0xFF:
            offset += 1
            continue
        if marker in BARE:
            offset += 2
            continue

        yield marker, offset
        if marker in (SCAN, END):
            return
        offset += 2 + number_at(data, offset + 2)


def _jpeg(data: memoryview) -> ImageHeader | None:
    for marker, offset in segments(data):
        if marker in FRAMES and offset + 9 < len(data):
            # B.2.2: marker (2), length (2), precision (1), height (2), width (2), number of components (1).
            precision = data[offset + 4]
            channels = data[offset + 9]
            height = number_at(data, offset + 5)
            width = number_at(data, offset + 7)
            plain = precision == 8 and channels in (1, 3)
            if height and width:
                return ImageHeader("jpeg", height, width, plain)
            return None

    return None


def _png(data: memoryview) -> ImageHeader | None:
    if len(data) < 26 or bytes(data[12:16]) != b"IHDR":
        return None

    # 11.2.1: IHDR is the first chunk; behind its length and name come width and height (4 each), depth and colour type
    # (1 each), of which 0 is gray and 2 RGB.
    width = int.from_bytes(data[16:20], "big")
    height = int.from_bytes(data[20:24], "big")
    depth = data[24]
    color = data[25]
    plain = depth == 8 and color in (0, 2)
    if height and width:
        return ImageHeader("png", height, width, plain)
    return None


def number_at(data: memoryview, offset: int) -> int:
    """Returns a number of two bytes."""
    return data[offset] << 8 | data[offset + 1]
