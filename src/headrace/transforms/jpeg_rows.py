"""The upper rows of a JPEG, without decoding those below.

The decoder is handed the same bytes with a smaller height in the frame header, so that it stops early. What it then has
to say of the bytes that are left over is how it tells that all went well until there. Source: ITU-T T.81, annex B.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.transforms.headers import FRAMES, SCAN, number_at, segments

Memory = Callable[[tuple[int, int, int]], NDArray[np.uint8]]
"""Gives an array of a shape to decode into."""

SEQUENTIAL = frozenset((0xC0, 0xC1))
"""Frames whose scan goes through the image once, from the top to the bottom, and is Huffman coded."""

RESTARTS = 0xDD

LEFT_OVER = "extraneous bytes before marker 0xd9"
"""What libjpeg says if all that it finds fault with are bytes between the last row and the end of the image."""


class Layout(NamedTuple):
    """What of a JPEG must be known. height_at: where its height stands, in bytes from the beginning. unit: rows of
    pixels in a row of blocks."""

    height_at: int
    unit: int


def layout_of(data: memoryview) -> Layout | None:
    """Returns the layout of a sequential JPEG with one scan and without restart markers; None for any other."""
    end = len(data)
    frame = None
    for marker, place in segments(data):
        if marker in SEQUENTIAL and place + 9 < end:
            # B.2.2: marker, length, precision (1), height (2), width (2), number of components (1), and for each of
            # these its name, its sampling factors (four bits across, four down) and its table.
            channels = data[place + 9]
            if frame is not None or place + 10 + 3 * channels > end:
                return None
            tallest = 0
            for channel in range(channels):
                tallest = max(tallest, data[place + 11 + 3 * channel] & 15)

            unit = 8 * tallest
            frame = place + 5, channels, unit
        elif marker == SCAN:
            if frame is None or frame[2] == 0 or place + 4 >= end or data[place + 4] != frame[1]:
                return None
            return Layout(frame[0], frame[2])
        elif marker in FRAMES or marker == RESTARTS or number_at(data, place + 2) < 2:
            return None

    return None


def decode_upper(
    data: memoryview, size: tuple[int, int], rows: int, divisor: int, memory: Memory
) -> NDArray[np.uint8] | None:
    """Decodes at least the first `rows` of a JPEG, at 1/`divisor` of its size (height, width), by simplejpeg.

    Returns uint8 [rows or more / divisor, width / divisor, 3] in what `memory` gives for that shape; None if the whole
    is to be decoded instead.

    That is so if few rows would be saved, if the JPEG is of another kind, and if it is damaged in these rows, as far as
    that can be seen.
    """
    if rows < size[0]:
        layout = layout_of(data)
    else:
        layout = None

    if layout is None or not _decoder_does_it():
        return None

    # A decoder that smooths colours looks at the next row of blocks, too.
    upper = (-(-rows // layout.unit) + 1) * layout.unit
    if upper < size[0]:
        return _decoded(data, layout, size, upper, divisor, memory)
    return None


def _decoded(
    data: memoryview, layout: Layout, size: tuple[int, int], upper: int, divisor: int, memory: Memory
) -> NDArray[np.uint8] | None:
    import simplejpeg

    # A copy: the bytes are the caller's, and may be shared with other threads.
    shorter = bytearray(data)
    shorter[layout.height_at : layout.height_at + 2] = upper.to_bytes(2, "big")
    pixels = memory((-(-upper // divisor), -(-size[1] // divisor), 3))
    if divisor > 1:
        height, width = pixels.shape[:2]
    else:
        height = 0
        width = 0

    # It always raises here, since rows are left over behind the last one. If that is all it has to say, the rows are
    # good. If it has found a fault before, it says that instead, and the whole is decoded by others.
    try:
        simplejpeg.decode_jpeg(shorter, "RGB", buffer=pixels, min_height=height, min_width=width)
    except ValueError as error:
        if LEFT_OVER in str(error):
            return pixels

    return None


@functools.cache
def _decoder_does_it() -> bool:
    """Tells, by trying, whether the simplejpeg that is installed leaves the right rows behind."""
    import simplejpeg

    rows, columns = np.mgrid[:96, :16].astype(np.uint8)
    picture = np.dstack([rows, 2 * columns, rows ^ columns])
    data = simplejpeg.encode_jpeg(picture, 90, "RGB", "420")
    layout = layout_of(memoryview(data))
    if layout is None:
        return False

    found = _decoded(memoryview(data), layout, (96, 16), 64, 1, lambda shape: np.empty(shape, np.uint8))
    return found is not None and np.array_equal(found[:48], simplejpeg.decode_jpeg(data, "RGB")[:48])
