"""Columns of encoded images: which they are, their samples as arrays, their batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import MissingExtraError, SampleError
from headrace.data.formats.columns import Array
from headrace.data.formats.columns.schema import Field
from headrace.data.gather import allocate
from headrace.transforms.decoding import decode

NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff", "gif")
"""Columns of bytes that hold images, by the last part of their names."""


def holds_images(field: Field) -> bool:
    """Tells whether a column holds encoded images."""
    return field.kind == "bytes" and field.name.rpartition(".")[2].lower() in NAMES


def decode_image(data: bytes | memoryview, place: str) -> Array:
    """Decodes an image to uint8 [height, width, 3], RGB, in memory of its own. `data`: bytes-like.

    Raises `SampleError` with the place. Transparency is dropped, and EXIF orientation is not applied.
    """
    try:
        return decode(data, place=place)
    except MissingExtraError as error:
        fix = "pip install 'headrace[images]', or open with decode=False"
        raise MissingExtraError.about("images need a decoder", found=str(error), fix=fix) from error


def stacked(images: Sequence[Array], memory: BatchMemory, name: str) -> torch.Tensor:
    """Returns images of one size as a tensor uint8 [batch, height, width, 3]. Raises `SampleError` if sizes differ."""
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        found = ", ".join(f"{height} x {width}" for height, width, _ in sorted(shapes)[:4])
        fix = "pack them with --resize, set a collate_fn that crops them, or open with decode=False"
        raise SampleError.about("images of one batch differ in size", place=f"column {name!r}", found=found, fix=fix)

    shape: tuple[int, ...]
    if images:
        shape = images[0].shape
    else:
        shape = (0, 0, 3)

    tensor, out = allocate(memory, (len(images), *shape), np.dtype(np.uint8))
    for place, image in enumerate(images):
        out[place] = image

    return tensor
