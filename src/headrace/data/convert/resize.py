"""Encoded images made smaller, and encoded again."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from headrace.core.errors import SampleError
from headrace.core.process.shortage import check_shortage
from headrace.data.convert.bad_images import one_line
from headrace.data.formats.columns import Block, Column, Keys, column_from, value_of
from headrace.data.images import decode_image, holds_images

ORIENTATION = 0x0112
"""The number of the tag that says how a picture is to be turned (Exif 2.32, 4.6.4)."""

KEPT = ("PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM")
"""Kinds of files that stay what they are, as Pillow calls them."""


def resized(block: Block, keys: Keys, side: int, quality: int, source: str) -> tuple[Block, list[str]]:
    """Returns a block whose images have a shorter side of at most `side` pixels; smaller ones are kept as they are.

    So are those that cannot be decoded, of which it returns a line each: the sample's number, and what is wrong.

    Each stays a file of its kind (`KEPT`), with its depth and transparency; all others are made JPEG.

    Of what EXIF says, the orientation is kept: whoever turned pictures by it, or did not, sees them as before.

    keys: numbers of the samples in the source.
    """
    bad = []
    named = block.numbered(source, keys)
    columns: dict[str, Column] = dict(block.columns)
    for field in block.schema:
        if holds_images(field):
            smaller = []
            for index, key in enumerate(keys.tolist()):
                image = value_of(field, block.columns[field.name], index)
                try:
                    smaller.append(_smaller(image, side, quality, named.place_of(index, field.name)))
                except SampleError as error:
                    smaller.append(image)
                    bad.append(f"sample {key}: {one_line(error)}")

            columns[field.name] = column_from(field, smaller)

    return Block(block.schema, columns), bad


def _smaller(data: bytes, side: int, quality: int, place: str) -> bytes:
    from PIL import Image

    pixels = decode_image(data, place)
    height, width = pixels.shape[:2]
    if min(height, width) <= side:
        return data

    scale = side / min(height, width)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    try:
        kind, image = _as_stored(data)
        if image is None:
            kind, image = "JPEG", Image.fromarray(np.ascontiguousarray(pixels))
        stream: Any = BytesIO()
        _resized(image, size).save(stream, kind, quality=quality, exif=_orientation(data))
    except (OSError, ValueError, MemoryError) as error:
        check_shortage(error, place, "resizing an image")
        raise SampleError.about("cannot resize an image", place=place, found=str(error)) from error

    encoded: bytes = stream.getvalue()
    return encoded


def _as_stored(data: bytes) -> tuple[str, Any]:
    """Returns the kind of a file, and its pixels with their own depth and transparency; None: make it a JPEG."""
    from PIL import Image

    with Image.open(BytesIO(data)) as image:
        if image.format not in KEPT:
            return "JPEG", None
        return image.format, image.copy()


def _resized(image: Any, size: tuple[int, int]) -> Any:
    """Returns a smaller image. One with a palette, or of truth values, is made of the nearest pixels, by Pillow."""
    from PIL import Image

    if image.mode.startswith("I"):
        # 16 bits of gray, which Pillow resizes as floating point only.
        wide = Image.fromarray(np.asarray(image).astype(np.float32))
        small = np.asarray(wide.resize(size, Image.Resampling.BICUBIC))
        return Image.fromarray(np.clip(np.rint(small), 0, 65535).astype(np.uint16))
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


def _orientation(data: bytes) -> Any:
    """Returns the EXIF of an image with nothing but its orientation; empty if it is as most are."""
    from PIL import Image

    kept = Image.Exif()
    with Image.open(BytesIO(data)) as image:
        orientation = image.getexif().get(ORIENTATION, 1)
    if orientation != 1:
        kept[ORIENTATION] = orientation
    return kept
