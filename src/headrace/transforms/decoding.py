"""Encoded images, paths, PIL images and arrays to one form: uint8 [height, width, 3], RGB.

JPEG goes through simplejpeg (libjpeg-turbo) where it is installed, then OpenCV; PNG through OpenCV; all else, and what
those will not take, through Pillow. For gray and RGB images of 8 bits all of them make the same pixels. All release the
interpreter lock while they decode.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.errors import MissingExtraError, SampleError, UsageError, explain
from headrace.transforms.headers import Header, is_complete, read_header
from headrace.transforms.jpeg_rows import Memory, decode_upper

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]
Size = tuple[int, int]
"""Height and width in pixels."""

# OSError, ValueError and SyntaxError are what Pillow 13 raises when bytes of a file are changed at random;
# the others are those that its own decoders expect from each other and translate, if not always.
PILLOW_FAILURES = (OSError, ValueError, SyntaxError, EOFError, TypeError, LookupError, struct.error)
DECODE_FAILURES = (*PILLOW_FAILURES, zlib.error)

PIXEL_LIMIT = 89_478_485
"""Pillow's limit: it warns of a larger image, and takes one of twice as many pixels for an attack."""

REDUCTIONS = (8, 4, 2)
"""Divisors of the size at which JPEG decodes faster than whole; other eighths are slower than all of it."""

FIRST_BYTES = 4096

LENT = 1 << 24
"""Largest image, in bytes, whose memory a thread keeps for the next one."""


def decode(data: Any, *, at_least: int | Size | None = None, place: object = None) -> Pixels:
    """Returns an image as uint8 [height, width, 3], RGB.

    data: encoded bytes (anything with the buffer protocol; an array or tensor uint8 [bytes] too), a path (`str` or
        `os.PathLike`), a PIL image, an array uint8 or uint16 [height, width], [height, width, 1, 3 or 4], or a tensor
        uint8 [1, 3 or 4, height, width].
    at_least: height and width in pixels, or one number for both, that will do. A JPEG is then decoded at 1/2, 1/4 or
        1/8 of its size, whatever still gives as much; other formats are decoded whole.
    place: named in errors; a path names itself.

    Transparency is dropped, 16 bits keep their upper 8, EXIF orientation is not applied. The result is the caller's,
    except that an array or tensor in the right form already is returned as it is, uncopied.

    Raises `SampleError` for what cannot be decoded and for what Pillow takes for a decompression bomb, `OSError` with
    the path if a file cannot be read, `UsageError` for other things than images, and `MissingExtraError` if no decoder
    is installed.
    """
    source = open_source(data, place)
    if at_least is None:
        return source.pixels()
    height, width = (at_least, at_least) if isinstance(at_least, int) else at_least
    return source.pixels(reduction(source.header, (height, width)))


def size_of(data: Any) -> Size:
    """Returns height and width in pixels of what `decode` takes, from the header alone. Raises as `decode` does."""
    if isinstance(data, (str, os.PathLike)):
        with open(data, "rb") as file:
            header = read_header(memoryview(file.read(FIRST_BYTES)))
        if header is not None:
            return header.height, header.width
    if _is_pil(data):
        return data.height, data.width
    source = open_source(data, None)
    return source.size if source.encoded is None or source.header is not None else _size_by_pillow(source)


def damage_in(data: bytes | memoryview) -> str | None:
    """Returns what libjpeg says of a JPEG that can be decoded, but only by guessing what its damaged parts were.

    None for sound ones, for other images, and without simplejpeg: other decoders do not tell.
    """
    header = read_header(memoryview(data))
    if header is None or header.format != "jpeg" or not header.plain or header.height * header.width > PIXEL_LIMIT:
        return None
    try:
        import simplejpeg
    except ImportError:
        return None
    try:
        simplejpeg.decode_jpeg(data, "RGB", buffer=lent((header.height, header.width, 3)))
    except ValueError as error:
        return str(error)
    return None


def reduction(header: Header | None, wanted: Size) -> int:
    """Returns the largest divisor by which a JPEG shrinks to no less than `wanted`; 1 for other formats."""
    if header is None or header.format != "jpeg":
        return 1
    for divisor in REDUCTIONS:
        height, width = _shrunk(header, divisor)
        if height >= wanted[0] and width >= wanted[1]:
            return divisor
    return 1


def _shrunk(header: Header, divisor: int) -> Size:
    return -(-header.height // divisor), -(-header.width // divisor)


@dataclass(slots=True)
class Source:
    """An image that is at hand, but not decoded yet: `encoded` bytes with their `header`, or `image`."""

    place: object
    encoded: memoryview | None = None
    header: Header | None = None
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
        return _decode_bytes(self._bytes, self.header, divisor, self.place)

    def lent_pixels(self, divisor: int, rows: int) -> Pixels:
        """Decodes as `pixels` does, to memory that this thread's next image gets as well.

        rows: of the whole image, from the top, that are needed. Of a JPEG there may be fewer than all; damage below
        them is then not noticed.
        """
        if self.image is not None:
            return self.image
        if self.header is not None:
            upper = _upper_rows(self._bytes, self.header, rows, divisor)
            if upper is not None:
                return upper
        return _decode_bytes(self._bytes, self.header, divisor, self.place, lent)

    @property
    def _bytes(self) -> memoryview:
        return self.encoded if self.encoded is not None else memoryview(b"")


class _Lent(threading.local):
    memory = np.empty(0, np.uint8)


_lent = _Lent()


def lent(shape: tuple[int, int, int]) -> Pixels:
    """Returns uint8 of this shape, of memory that the next call in this thread hands out again.

    Memory that is new for each image costs a page fault for every 4 KiB, a twentieth of the time of decoding.
    """
    count = math.prod(shape)
    if count > LENT:
        return np.empty(shape, np.uint8)
    if count > len(_lent.memory):
        _lent.memory = np.empty(count, np.uint8)
    return _lent.memory[:count].reshape(shape)


def open_source(data: Any, place: object) -> Source:
    """Reads a file, or takes what is in memory; see `decode` for `data` and errors. Decodes nothing yet."""
    if isinstance(data, (str, os.PathLike)):
        place = _printable(data) if place is None else place
        encoded = memoryview(_read_file(os.fspath(data)))
    elif isinstance(data, (bytes, bytearray, memoryview)):
        encoded = memoryview(data)
    elif isinstance(data, (np.ndarray, torch.Tensor)):
        array = _channels_last(data)
        if array.ndim != 1:
            return Source(place, image=rgb_array(array))
        encoded = memoryview(np.ascontiguousarray(array).data)
    elif _is_pil(data):
        return Source(place, image=_from_pil(data, place))
    else:
        encoded = _buffer(data)
    if encoded.format != "B" or encoded.ndim != 1:
        encoded = encoded.cast("B")
    return Source(place, encoded, read_header(encoded))


def rgb_array(array: NDArray[Any]) -> Pixels:
    """Returns an array of pixels as uint8 [height, width, 3]: itself if it is such, else a copy.

    Takes uint8 and uint16, gray [height, width], [height, width, 1], RGB and RGBA. Raises `UsageError` for others.
    """
    known = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if not known or array.dtype not in (np.uint8, np.uint16) or 0 in array.shape:
        expected = "uint8 or uint16, [height, width] or [height, width, 1, 3 or 4], not empty"
        cure = "convert it first: (255 * image).astype(numpy.uint8), or image.transpose(1, 2, 0)"
        found = f"{array.dtype} {list(array.shape)}"
        raise UsageError(explain("cannot take an array for an image", found=found, expected=expected, cure=cure))
    if array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    gray = array.ndim == 2 or array.shape[2] == 1
    if gray:
        return np.repeat(array.reshape(*array.shape[:2], 1), 3, axis=2)
    return array[:, :, :3] if array.shape[2] == 4 else array


def convert_to_rgb(image: Image) -> Image:
    """A decoded copy in mode RGB, independent of the file that `image` reads from."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # Pillow would clip 0..65535 at 255, which turns nearly every pixel white.
        upper = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(upper.astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        # Same colours as a direct conversion, without Pillow's warning.
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _decode_bytes(
    data: memoryview, header: Header | None, divisor: int, place: object, memory: Memory | None = None
) -> Pixels:
    sound = header is not None and header.plain and is_complete(data, header)
    small = header is not None and header.height * header.width <= PIXEL_LIMIT
    if header is not None and small and header.format == "jpeg" and header.plain:
        fast, installed = _by_simplejpeg(data, header, divisor, memory)
        if fast is not None:
            return fast
        sound = sound and not installed  # what simplejpeg refused, Pillow shall judge
    if sound and small:
        decoded, _ = _by_opencv(data, divisor)
        if decoded is not None:
            return decoded
    decoded = _by_pillow(data, header, divisor, place)
    return decoded if decoded is not None else _without_pillow(data, header, divisor, place)


def _upper_rows(data: memoryview, header: Header, rows: int, divisor: int) -> Pixels | None:
    """Decodes no more of a sound JPEG than its first rows, where that can be done."""
    small = header.height * header.width <= PIXEL_LIMIT
    if not (small and header.format == "jpeg" and header.plain and is_complete(data, header) and _has_simplejpeg()):
        return None
    return decode_upper(data, (header.height, header.width), rows, divisor, lent)


def _by_simplejpeg(data: memoryview, header: Header, divisor: int, memory: Memory | None) -> tuple[Pixels | None, bool]:
    """Decodes a sound JPEG; None for one that it will not take. Also tells whether simplejpeg is installed."""
    try:
        import simplejpeg
    except ImportError:
        return None, False
    height, width = _shrunk(header, divisor)
    least = {"min_height": height, "min_width": width} if divisor > 1 else {}
    buffer = None if memory is None else memory((height, width, 3))
    try:
        decoded: Pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, **least)
    except ValueError:
        return None, True
    return decoded, True


def _by_opencv(data: memoryview, divisor: int) -> tuple[Pixels | None, bool]:
    """Decodes with OpenCV; None for what it will not take. Also tells whether OpenCV is installed."""
    try:
        import cv2
    except ImportError:
        return None, False
    reduced = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    flag = reduced.get(divisor, cv2.IMREAD_REDUCED_COLOR_8) | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        return None, True
    if decoded is None:
        return None, True
    return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8), True


def _by_pillow(data: memoryview, header: Header | None, divisor: int, place: object) -> Pixels | None:
    """Decodes with Pillow, or says why it cannot; None if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with Image.open(BytesIO(data)) as image:
            if header is not None and divisor > 1:
                image.draft(None, (header.width // divisor, header.height // divisor))
            return np.array(convert_to_rgb(image))
    except Image.DecompressionBombError as error:
        cure = "remove the image, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        raise _undecodable(place, str(error), cure) from error
    except DECODE_FAILURES as error:
        found = (str(error) or type(error).__name__) if len(data) else "no bytes"
        raise _undecodable(place, found) from error


def _size_by_pillow(source: Source) -> Size:
    try:
        from PIL import Image
    except ImportError:
        return source.size
    try:
        with Image.open(BytesIO(source.encoded or b"")) as image:
            return image.height, image.width
    except (Image.DecompressionBombError, *DECODE_FAILURES) as error:
        raise _undecodable(source.place, str(error) or type(error).__name__) from error


def _without_pillow(data: memoryview, header: Header | None, divisor: int, place: object) -> Pixels:
    """Decodes what is neither plain nor sound with what there is, for want of Pillow."""
    if header is not None and header.height * header.width > 2 * PIXEL_LIMIT:
        found = f"{header.height} x {header.width} pixels"
        raise _undecodable(place, found, "remove the image, or make it smaller")
    if header is not None and not is_complete(data, header):
        raise _undecodable(place, f"a {header.format} without its end ({len(data)} bytes)")
    decoded, installed = _by_opencv(data, divisor) if len(data) else (None, True)
    if decoded is not None:
        return decoded
    if installed or (header is not None and header.plain and header.format == "jpeg" and _has_simplejpeg()):
        found = f"{len(data)} bytes, first {bytes(data[:8])!r}" if len(data) else "no bytes"
        raise _undecodable(place, found)
    cure = "pip install 'headrace[images]' (Pillow and simplejpeg), or pip install opencv-python-headless"
    what = "this image needs Pillow or OpenCV" if _has_simplejpeg() else "images need Pillow, simplejpeg or OpenCV"
    raise MissingExtraError(explain(what, place=place, cure=cure))


def _has_simplejpeg() -> bool:
    try:
        import simplejpeg  # noqa: F401
    except ImportError:
        return False
    return True


def _undecodable(place: object, found: str, cure: str = "restore or remove the sample") -> SampleError:
    expected = "an image that Pillow can decode"
    return SampleError(explain("cannot decode an image", place=place, found=found, expected=expected, cure=cure))


def _channels_last(data: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    if isinstance(data, np.ndarray):
        return data
    array: NDArray[Any] = data.numpy(force=True)
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def _is_pil(data: Any) -> bool:
    """Tells whether this is a PIL image, without importing Pillow where nobody has."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(data).__mro__)


def _from_pil(image: Image, place: object) -> Pixels:
    try:
        return np.array(convert_to_rgb(image))
    except DECODE_FAILURES as error:
        raise _undecodable(place, str(error) or type(error).__name__) from error


def _buffer(data: Any) -> memoryview:
    try:
        return memoryview(data)
    except TypeError as error:
        expected = "encoded bytes, a path, a PIL image, an array [height, width, 3] or a tensor [3, height, width]"
        cure = "for samples that are dictionaries or tuples, say which entry is the image: on='image'"
        message = explain("not an image", found=type(data).__name__, expected=expected, cure=cure)
        raise UsageError(message) from error


def _read_file(path: str | bytes) -> bytes:
    """All bytes of a file; every OSError names the path, also those that arise while reading."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError as error:
        error.filename = path
        raise


def _printable(path: str | os.PathLike[str]) -> str:
    """A path with bytes that are not UTF-8 written as \\xNN, so that every terminal and log takes it."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")
