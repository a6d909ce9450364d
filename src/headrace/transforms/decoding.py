"""Encoded images, paths, PIL images and arrays to one form: uint8 [height, width, 3], RGB."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import FormatError, SampleError, UsageError
from headrace.core.files.regular_files import open_regular
from headrace.transforms.decoders import (
    DECODE_FAILURES,
    Pixels,
    Size,
    convert_to_rgb,
    decode_bytes,
    shrunk,
    size_by_pillow,
    undecodable,
)
from headrace.transforms.headers import ImageHeader, read_header

if TYPE_CHECKING:
    from PIL.Image import Image

REDUCTIONS = (8, 4, 2)
"""Divisors of the size at which JPEG decodes faster than whole; other eighths are slower than all of it."""

FIRST_BYTES = 4096
"""Bytes of a file in which nearly every header lies; a JPEG with a long preview in front of it is read whole."""


def decode(data: object, *, at_least: int | Size | None = None, place: object = None) -> Pixels:
    """Decodes an image to uint8 [height, width, 3], RGB.

    Transparency is dropped, 16 bits keep their upper 8, EXIF orientation is not applied.

    Args:
        data: encoded bytes (anything with the buffer protocol; an array or tensor uint8 [bytes] too), a path (`str` or
            `os.PathLike`), a PIL image, an array uint8 or uint16 [height, width], [height, width, 1, 3 or 4], or a
            tensor uint8 [1, 3 or 4, height, width].
        at_least: height and width in pixels, or one number for both, that will do. A JPEG is then decoded at 1/2, 1/4
            or 1/8 of its size, whatever still gives as much; other formats are decoded whole.
        place: named in errors; a path names itself.

    Returns:
        An array that is the caller's, except that an array or tensor in the right form already is returned as it is,
            uncopied.

    Raises:
        SampleError: the image cannot be decoded, or Pillow takes it for a decompression bomb.
        OSError: a file cannot be read; the path is in it.
        UsageError: other things than images.
        MissingExtraError: no decoder is installed.

    Examples:
        >>> from PIL import Image
        >>> Image.new("RGB", (64, 48)).save("1.jpg")
        >>> headrace.transforms.decode("1.jpg").shape
        (48, 64, 3)
    """
    source = open_source(data, place)
    if at_least is None:
        return source.pixels()

    if isinstance(at_least, int):
        height = at_least
        width = at_least
    else:
        height, width = at_least

    return source.pixels(reduction(source.header, (height, width)))


def size_of(data: object) -> Size:
    """Reads the size of an image from the header alone.

    Args:
        data: what `decode` takes.

    Returns:
        Height and width in pixels.

    Raises:
        SampleError: as `decode` raises it, like its other errors.

    Examples:
        >>> from PIL import Image
        >>> Image.new("RGB", (64, 48)).save("1.jpg")
        >>> headrace.transforms.size_of("1.jpg")
        (48, 64)
    """
    if isinstance(data, (str, os.PathLike)):
        with open(data, "rb") as file:
            header = read_header(memoryview(file.read(FIRST_BYTES)))
        if header is not None:
            return header.height, header.width

    if _is_pil(data):
        return data.height, data.width

    source = open_source(data, None)
    if source.encoded is None or source.header is not None:
        return source.size
    return size_by_pillow(source.encoded, source.place) or source.size


def reduction(header: ImageHeader | None, wanted: Size) -> int:
    """Returns the largest divisor by which a JPEG shrinks to no less than `wanted`; 1 for other formats."""
    if header is None or header.format != "jpeg":
        return 1

    for divisor in REDUCTIONS:
        height, width = shrunk(header, divisor)
        if height >= wanted[0] and width >= wanted[1]:
            return divisor

    return 1


@dataclass(slots=True)
class EncodedImage:
    """An image that is at hand, but not decoded yet: `encoded` bytes with their `header`, or `image`."""

    place: object
    encoded: memoryview | None = None
    header: ImageHeader | None = None
    image: Pixels | None = None

    @property
    def size(self) -> Size:
        """Height and width in pixels of the whole image."""
        if self.header is not None:
            return self.header.height, self.header.width
        if self.image is None:
            self.image = self.pixels()
        return self.image.shape[0], self.image.shape[1]

    @property
    def is_jpeg(self) -> bool:
        """Whether these are encoded bytes that can be decoded at a part of their size."""
        return self.header is not None and self.header.format == "jpeg"

    def pixels(self, divisor: int = 1) -> Pixels:
        """Decodes to uint8 [height, width, 3]; a JPEG at 1/`divisor` of its size, rounded up."""
        if self.image is not None:
            return self.image
        return decode_bytes(self._bytes, self.header, divisor, self.place)

    def lent_pixels(self, divisor: int, rows: int) -> Pixels:
        """Decodes as `pixels` does, to memory that this thread's next image gets as well.

        rows: of the whole image, from the top, that are needed. Of a JPEG there may be fewer than all; damage below
        them is then not noticed.
        """
        if self.image is not None:
            return self.image
        return decode_bytes(self._bytes, self.header, divisor, self.place, rows)

    @property
    def _bytes(self) -> memoryview:
        if self.encoded is not None:
            return self.encoded
        return memoryview(b"")


def open_source(data: object, place: object) -> EncodedImage:
    """Reads a file, or takes what is in memory; see `decode` for `data` and errors. Decodes nothing yet."""
    if isinstance(data, (str, os.PathLike)):
        if place is None:
            place = _printable(data)
        encoded = memoryview(read_file(data))
    elif isinstance(data, (bytes, bytearray, memoryview)):
        encoded = memoryview(data)
    elif isinstance(data, (np.ndarray, torch.Tensor)):
        array = _channels_last(data)
        if array.ndim != 1:
            return EncodedImage(place, image=rgb_array(array))
        encoded = memoryview(np.ascontiguousarray(array).data)
    elif _is_pil(data):
        return EncodedImage(place, image=_from_pil(data, place))
    else:
        encoded = _buffer(data)

    # Decoders want plain bytes; a buffer of another type may come from `array.array` or a ctypes array.
    if encoded.format != "B" or encoded.ndim != 1:
        encoded = encoded.cast("B")
    return EncodedImage(place, encoded, read_header(encoded))


def rgb_array(array: NDArray[Any]) -> Pixels:
    """Returns an array of pixels as uint8 [height, width, 3]: itself if it is such, else a copy.

    Takes uint8 and uint16, gray [height, width], [height, width, 1], RGB and RGBA. Raises `UsageError` for others.
    """
    known = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not known or array.dtype not in (np.uint8, np.uint16) or 0 in array.shape:
        expected = "uint8 or uint16, [height, width] or [height, width, 1, 3 or 4], not empty"
        fix = "convert it first: (255 * image).astype(numpy.uint8), or image.transpose(1, 2, 0)"
        found = f"{array.dtype} {list(array.shape)}"
        raise UsageError.about("cannot take an array for an image", found=found, expected=expected, fix=fix)

    if array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)

    gray = array.ndim == 2 or array.shape[2] == 1
    if gray:
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)
    if array.shape[2] == 4:
        return array[:, :, :3]
    return array


def _channels_last(data: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    if isinstance(data, np.ndarray):
        return data

    array: NDArray[Any] = data.numpy(force=True)
    if array.ndim == 3:
        return array.transpose(1, 2, 0)
    return array


def _is_pil(data: object) -> TypeGuard[Image]:
    """Tells whether this is a PIL image, without importing Pillow where nobody has."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(data).__mro__)


def _from_pil(image: Image, place: object) -> Pixels:
    try:
        return np.array(convert_to_rgb(image))
    except DECODE_FAILURES as error:
        raise undecodable(place, str(error) or type(error).__name__) from error


def _buffer(data: Any) -> memoryview:
    try:
        return memoryview(data)
    except TypeError as error:
        expected = "encoded bytes, a path, a PIL image, an array [height, width, 3] or a tensor [3, height, width]"
        fix = "for samples that are dictionaries or tuples, say which entry is the image: on='image'"
        raise UsageError.about("not an image", found=type(data).__name__, expected=expected, fix=fix) from error


def read_file(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file; every OSError names the path, also those that arise while reading.

    Raises `SampleError` if it is something else, such as a named pipe, which would be waited for.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except FormatError as error:
        raise SampleError(str(error)) from error
    except OSError as error:
        # `read` raises without a path, say when a disk fails: whoever reads the log wants to know which file it was.
        error.filename = os.fspath(path)
        raise


def _printable(path: str | os.PathLike[str]) -> str:
    """A path with bytes that are not UTF-8 written as \\xNN, so that every terminal and log takes it."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")
