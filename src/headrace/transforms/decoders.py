"""The libraries that decode images, in the order in which they are asked.

JPEG goes through simplejpeg (libjpeg-turbo) where it is installed, then OpenCV; PNG through OpenCV; all else, and what
those will not take, through Pillow. For gray and RGB images of 8 bits all of them make the same pixels. All release the
interpreter lock while they decode.
"""

from __future__ import annotations

import math
import re
import struct
import threading
import zlib
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import MissingExtraError, SampleError
from headrace.core.process.shortage import check_shortage
from headrace.transforms.headers import ImageHeader, is_complete, read_header
from headrace.transforms.jpeg_rows import decode_upper

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

PROGRAMS = ("EPS",)
"""What Pillow would have another program run."""

HARMLESS = re.compile("unknown JFIF revision|before marker 0x(c|e|da|db|dd|fe)")
"""What libjpeg says of headers, whose tables it has read all the same."""

AMBIGUOUS = 8
"""Pixels of the longer side, below which some eighths of an image have one size, and decoders choose different ones."""

LENT = 1 << 24
"""Largest image, in bytes, whose memory a thread keeps for the next one."""


def decode_bytes(
    data: memoryview, header: ImageHeader | None, divisor: int, place: object, rows: int | None = None
) -> Pixels:
    """Returns an image as uint8 [height, width, 3], a JPEG at 1/`divisor` of its size.

    header: what was read from `data`. place: for messages. rows: of the whole image, from the top, that are needed; of
    a JPEG there may then be fewer than all, in memory that is lent (see `lent`). None: all, in memory of their own.
    Raises `SampleError`, and `MissingExtraError` if no decoder is installed that could take it.
    """
    if header is not None and max(header.height, header.width) < AMBIGUOUS:
        divisor = 1

    sound = header is not None and header.plain and is_complete(data, header)
    small = header is not None and header.height * header.width <= PIXEL_LIMIT
    if header is not None and _is_for_simplejpeg(header):
        fast = None
        if rows is not None and sound:
            fast = decode_upper(data, (header.height, header.width), rows, divisor, lent)
        if fast is None:
            fast = _by_simplejpeg(data, header, divisor, is_lent=rows is not None)
        if fast is not None:
            return fast
        # What simplejpeg refused, Pillow shall judge: OpenCV would guess without a word.
        sound = False

    if sound and small:
        decoded, _ = _by_opencv(data, divisor)
        if decoded is not None:
            return decoded

    if header and divisor > 1:
        at_most = (max(1, header.height // divisor), max(1, header.width // divisor))
    else:
        at_most = None

    image = rgb_by_pillow(data, place, at_most)
    if image is not None:
        return np.array(image)
    return _without_pillow(data, header, divisor, place)


def _is_for_simplejpeg(header: ImageHeader) -> bool:
    """Tells whether an image is one that simplejpeg decodes, and simplejpeg is installed."""
    small = header.height * header.width <= PIXEL_LIMIT
    return header.format == "jpeg" and header.plain and small and _has_simplejpeg()


def _by_simplejpeg(data: memoryview, header: ImageHeader, divisor: int, *, is_lent: bool) -> Pixels | None:
    """Decodes a sound JPEG; None for one that it will not take."""
    import simplejpeg

    height, width = shrunk(header, divisor)
    if divisor > 1:
        least = {"min_height": height, "min_width": width}
    else:
        least = {}

    try:
        if is_lent:
            buffer = lent((height, width, 3))
        else:
            buffer = None

        decoded: Pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, **least)
    except ValueError:
        return None

    return decoded


def _by_opencv(data: memoryview, divisor: int) -> tuple[Pixels | None, bool]:
    """Decodes with OpenCV; None for what it will not take. Also tells whether OpenCV is installed."""
    try:
        import cv2
    except ImportError:
        return None, False

    # Orientation is not applied, as by the other decoders; whoever wants it reads EXIF for all of them.
    reduced = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4}
    flag = reduced.get(divisor, cv2.IMREAD_REDUCED_COLOR_8) | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:
        return None, True

    if decoded is None:
        return None, True
    return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8), True


def rgb_by_pillow(data: memoryview, place: object, at_most: Size | None = None) -> Image | None:
    """Returns an image in mode RGB, or says why Pillow cannot decode it; None if Pillow is not installed.

    at_most: height and width that will do, of a JPEG. Raises `SampleError`.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        return None

    try:
        with Image.open(BytesIO(data)) as image:
            if image.format in PROGRAMS:
                raise undecodable(place, f"a program in PostScript ({image.format})", "convert it to PNG or JPEG")
            if at_most is not None:
                image.draft(None, (at_most[1], at_most[0]))
            return convert_to_rgb(image)
    except Image.DecompressionBombError as error:
        fix = "remove the image, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        raise undecodable(place, str(error), fix) from error
    except UnidentifiedImageError as error:
        raise undecodable(place, _unknown(data)) from error
    except DECODE_FAILURES as error:
        if isinstance(error, SampleError):
            raise
        check_shortage(error, place, "decoding an image")
        raise undecodable(place, str(error) or type(error).__name__) from error


def _without_pillow(data: memoryview, header: ImageHeader | None, divisor: int, place: object) -> Pixels:
    """Decodes what is neither plain nor sound with what there is, for want of Pillow."""
    if header is not None and header.height * header.width > 2 * PIXEL_LIMIT:
        found = f"{header.height} x {header.width} pixels"
        raise undecodable(place, found, "remove the image, or make it smaller")

    if header is not None and not is_complete(data, header):
        raise undecodable(place, f"a {header.format} without its end ({len(data)} bytes)")

    if len(data):
        decoded, installed = _by_opencv(data, divisor)
    else:
        decoded = None
        installed = True

    if decoded is not None:
        return decoded
    if header is not None and header.plain and header.format == "jpeg" and _has_simplejpeg():
        return _guessed_by_simplejpeg(data, place)
    if installed:
        raise undecodable(place, _unknown(data))

    fix = "pip install 'headrace[images]' (Pillow and simplejpeg), or pip install opencv-python-headless"
    if _has_simplejpeg():
        what = "this image needs Pillow or OpenCV"
    else:
        what = "images need Pillow, simplejpeg or OpenCV"

    raise MissingExtraError.about(what, place=place, fix=fix)


def _guessed_by_simplejpeg(data: memoryview, place: object) -> Pixels:
    """Decodes a JPEG with which libjpeg finds some fault, as other decoders do without a word."""
    import simplejpeg

    try:
        decoded: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=False)
    except ValueError as error:
        raise undecodable(place, str(error)) from error

    return decoded


def _has_simplejpeg() -> bool:
    try:
        import simplejpeg  # noqa: F401
    except ImportError:
        return False
    return True


def _unknown(data: memoryview) -> str:
    if len(data):
        return f"cannot identify an image ({len(data)} bytes, first {bytes(data[:8])!r})"
    return "no bytes"


def undecodable(place: object, found: str, fix: str = "restore or remove it") -> SampleError:
    """Returns the error for an image that cannot be decoded."""
    expected = "an image that Pillow can decode"
    return SampleError.about("cannot decode an image", place=place, found=found, expected=expected, fix=fix)


def shrunk(header: ImageHeader, divisor: int) -> Size:
    """Returns the size of a JPEG that is decoded at 1/`divisor` of it."""
    return -(-header.height // divisor), -(-header.width // divisor)


def size_by_pillow(data: memoryview, place: object) -> Size | None:
    """Returns the size that Pillow reads from a header; None if Pillow is not installed. Raises `SampleError`."""
    try:
        from PIL import Image
    except ImportError:
        return None

    try:
        with Image.open(BytesIO(data)) as image:
            return image.height, image.width
    except (Image.DecompressionBombError, *DECODE_FAILURES) as error:
        raise undecodable(place, str(error) or type(error).__name__) from error


def convert_to_rgb(image: Image) -> Image:
    """A decoded copy in mode RGB, independent of the file that `image` reads from.

    Raises `ValueError` for pixels of which nothing says which of their values is white.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        # Pillow would clip 0..65535 at 255, which turns nearly every pixel white.
        upper = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(upper.astype(np.uint8)).convert("RGB")

    if image.mode in ("I", "F"):
        # Pillow would clip them to 0..255: nearly all white, or black.
        kind = {"I": "whole numbers of more than 16 bits, or with a sign", "F": "floating point"}[image.mode]
        raise ValueError(f"pixels of {kind}, of which no value is known to be white; open with decode=False")

    if image.mode == "P" and "transparency" in image.info:
        # Same colours as a direct conversion, without Pillow's warning.
        return image.convert("RGBA").convert("RGB")

    return image.convert("RGB")


def is_sound_jpeg(data: bytes | memoryview) -> bool:
    """Tells whether this is a JPEG that decodes without a fault; False too if that cannot be told (`damage_in`)."""
    return _fault_in(data) == ""


def damage_in(data: bytes | memoryview) -> str | None:
    """Returns what libjpeg says of the pixels of a JPEG that can be decoded, but perhaps only by guessing some of them.

    None for sound ones, for other images, and without simplejpeg: other decoders do not tell.
    """
    fault = _fault_in(data)
    if fault and not HARMLESS.search(fault):
        return fault
    return None


def _fault_in(data: bytes | memoryview) -> str | None:
    """Returns the first fault that libjpeg finds, "" if there is none, None if simplejpeg is not to be asked."""
    header = read_header(memoryview(data))
    if header is None or not _is_for_simplejpeg(header):
        return None

    import simplejpeg

    try:
        simplejpeg.decode_jpeg(data, "RGB", buffer=lent((header.height, header.width, 3)))
    except ValueError as error:
        return str(error)

    return ""


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
