"""Encoded images to arrays, by decoders that release the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch

from headrace.core.batch_memory import BatchMemory
from headrace.core.errors import MissingExtraError, SampleError, explain
from headrace.dataset.gather import allocate
from headrace.dataset.image_folder import DECODE_FAILURES, convert_to_rgb
from headrace.formats.columns import Array
from headrace.formats.schema import Field

NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff", "gif")
"""Columns of bytes that hold images, by the last part of their names."""


def holds_images(field: Field) -> bool:
    """Tells whether a column holds encoded images."""
    return field.kind == "bytes" and field.name.rpartition(".")[2].lower() in NAMES


def decode_image(data: Any, place: str) -> Array:
    """Decodes an image to uint8 [height, width, 3], RGB. `data`: bytes-like. Raises `SampleError` with the place.

    JPEG goes through libjpeg-turbo where simplejpeg is installed, all else through Pillow. Transparency is dropped, and
    EXIF orientation is not applied.
    """
    if bytes(data[:2]) == b"\xff\xd8":
        decoded = _fast(data)
        if decoded is not None:
            return decoded
    try:
        from PIL import Image
    except ImportError as error:
        cure = "pip install 'headrace[images]', or open with decode=False"
        raise MissingExtraError(explain("images need Pillow", found=str(error), cure=cure)) from error
    try:
        with Image.open(BytesIO(data)) as image:
            return np.array(convert_to_rgb(image))
    except (Image.DecompressionBombError, *DECODE_FAILURES) as error:
        found = (str(error) or type(error).__name__) if len(data) else "no bytes"
        expected = "an image that Pillow can decode"
        cure = "restore or remove the sample, or open with decode=False"
        message = explain("cannot decode an image", place=place, found=found, expected=expected, cure=cure)
        raise SampleError(message) from error


def _fast(data: Any) -> Array | None:
    """Decodes a sound JPEG; None for one that it will not take (Pillow then says why, or takes it)."""
    try:
        import simplejpeg
    except ImportError:
        return None
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > 89_478_485:  # Pillow's limit, beyond which it takes an image for an attack
            return None
        decoded: Array = simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False)
    except ValueError:
        return None
    return decoded


def stacked(images: Sequence[Array], memory: BatchMemory, name: str) -> torch.Tensor:
    """Returns images of one size as a tensor uint8 [batch, height, width, 3]. Raises `SampleError` if sizes differ."""
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        found = ", ".join(f"{height} x {width}" for height, width, _ in sorted(shapes)[:4])
        cure = "pack them with --resize, set a collate_fn that crops them, or open with decode=False"
        message = explain("images of one batch differ in size", place=f"column {name!r}", found=found, cure=cure)
        raise SampleError(message)
    tensor, out = allocate(memory, (len(images), *(images[0].shape if images else (0, 0, 3))), np.dtype(np.uint8))
    for place, image in enumerate(images):
        out[place] = image
    return tensor
