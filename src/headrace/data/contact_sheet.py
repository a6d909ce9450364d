"""A contact sheet: one image of many pictures of a dataset, with their labels below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import DatasetError, SampleError, UsageError
from headrace.core.extras import extra
from headrace.core.randomness.counter_based import spread
from headrace.core.text.printable import printable
from headrace.data.formats.columns import Array, Field, Schema
from headrace.data.formats.protocol import Reader
from headrace.data.images import decode_image, holds_images

PICTURES = 64
"""Pictures at most."""

ACROSS = 8
"""Pictures in a row."""

TILE = 128
"""Pixels of the side of a picture."""

CAPTION = 16
"""Pixels of the height of the text below a picture."""

LONGEST_CAPTION = TILE // 6 - 1
"""Characters of such a text: one takes six pixels."""


def make_sheet(reader: Reader, names: Sequence[str], file: Path) -> int:
    """Writes a PNG of up to 64 pictures, spread over the data, with their labels below; returns how many there are.

    Raises `UsageError` if there are none, `MissingExtraError` without Pillow, `DatasetError` if it cannot be written.
    """
    image_module = extra("PIL.Image", "images")
    draw_module = extra("PIL.ImageDraw", "images")
    schema = reader.schema.only(names)
    field = _field_of_pictures(schema)
    if field is None or len(reader) == 0:
        if len(reader):
            found = ", ".join(f"{column.name}: {column}" for column in schema)
        else:
            found = "no samples"

        expected = "a column of encoded images (image, jpg, png ...) or of uint8, H x W, H x W x 3 or 3 x H x W"
        raise UsageError.about("there are no pictures for a sheet", place=reader.place, found=found, expected=expected)

    label = _field_of_labels(schema)
    keys = spread(len(reader), PICTURES)
    across = min(ACROSS, len(keys))
    size = (across * TILE, math.ceil(len(keys) / across) * (TILE + CAPTION))
    sheet = image_module.new("RGB", size, "white")
    pen = draw_module.Draw(sheet)
    for position, key in enumerate(keys.tolist()):
        left = position % across * TILE
        top = position // across * (TILE + CAPTION)
        pixels, caption = _picture(reader, key, field, label)
        if pixels is not None:
            tile = _tile(image_module, pixels)
            sheet.paste(tile, (left + (TILE - tile.width) // 2, top + (TILE - tile.height) // 2))
        pen.text((left + 2, top + TILE + 2), caption, fill="black")

    try:
        sheet.save(file, format="PNG")
    except OSError as error:
        found = error.strerror or str(error)
        raise DatasetError.about(
            "cannot write the sheet", place=file, found=found, fix="choose another file"
        ) from error

    return len(keys)


def _field_of_pictures(schema: Schema) -> Field | None:
    """Returns the first column of encoded images, or else the first one of pixels."""
    for holds in (holds_images, holds_pixels):
        for field in schema:
            if holds(field):
                return field

    return None


def _field_of_labels(schema: Schema) -> Field | None:
    """Returns the first column whose classes have names, or else the one that is called `label`."""
    for field in schema:
        if field.labels:
            return field

    if "label" in schema.names:
        return schema["label"]
    return None


def _picture(reader: Reader, key: int, field: Field, label: Field | None) -> tuple[Array | None, str]:
    """Returns a picture, None if it cannot be decoded, and what stands below it."""
    wanted = [field.name]
    if label is not None:
        wanted.append(label.name)

    row = reader.fetch(np.array([key]), wanted).row(0)
    if label is None:
        caption = str(key)
    else:
        caption = _name_of(label, row[label.name])

    try:
        return _pixels(field, row[field.name], f"{reader.place}, sample {key}"), _fitted(caption)
    except SampleError:
        return None, "(cannot be decoded)"


def _name_of(label: Field, value: Any) -> str:
    """Returns a label in words: the name of a class, a number or a text; nothing for bytes and arrays."""
    if label.kind == "text":
        return str(value)
    if label.kind == "bytes" or np.ndim(value):
        return ""

    number: int | float = value.item()
    if label.labels and 0 <= number < len(label.labels):
        return label.labels[int(number)]
    return str(number)


def _fitted(caption: str) -> str:
    """Returns a caption that is no longer than its tile is wide, in letters that every font has."""
    text = printable(caption, kept="").encode("ascii", "replace").decode()
    if len(text) <= LONGEST_CAPTION:
        return text
    return text[: LONGEST_CAPTION - 3] + "..."


def holds_pixels(field: Field) -> bool:
    """Tells whether a column holds pictures as they are: uint8, H x W, H x W x 1, H x W x 3 or 3 x H x W."""
    if field.kind != "fixed" or field.dtype != np.uint8 or min(field.shape, default=0) < 1:
        return False
    return len(field.shape) == 2 or (len(field.shape) == 3 and (field.shape[2] in (1, 3) or field.shape[0] == 3))


def _pixels(field: Field, value: Any, place: str) -> Array:
    """Returns uint8 [height, width] or [height, width, 3]."""
    if isinstance(value, bytes):
        return decode_image(value, place)
    if value.ndim == 3 and value.shape[2] not in (1, 3):
        value = value.transpose(1, 2, 0)

    if value.ndim == 3 and value.shape[2] == 1:
        pixels: Array = value[:, :, 0]
    else:
        pixels = value

    return pixels


def _tile(image_module: Any, pixels: Array) -> Any:
    """Returns a picture that fits: large ones reduced, small ones with their pixels as squares."""
    picture = image_module.fromarray(np.ascontiguousarray(pixels))
    factor = (TILE - 4) // max(picture.size)
    if factor > 1:
        return picture.resize((picture.width * factor, picture.height * factor), image_module.Resampling.NEAREST)

    picture.thumbnail((TILE - 4, TILE - 4))
    return picture
