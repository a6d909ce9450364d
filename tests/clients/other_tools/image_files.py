"""Images of every mode that Pillow, OpenCV, tifffile and ImageMagick write. Pillow reads them back.

docs/howto/images.md has the rules: RGB, of 16 bits the upper 8, and no turning by EXIF but what Pillow itself does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.clients.other_tools.comparison import Written
from tests.clients.other_tools.tools import tool

SIZE = (12, 10)
"""Width and height, which differ: a turned image shows."""


def gradient(top: float = 255) -> Any:
    """Returns an array [height, width] with each value from 0 to the top."""
    width, height = SIZE
    return np.linspace(0, top, width * height).reshape(height, width)


def colours() -> Any:
    """Returns an array [height, width, 3]."""
    one = gradient().astype(np.uint8)
    return np.stack([one, one[::-1], one[:, ::-1]], -1)


def modes() -> Iterator[tuple[str, Image.Image]]:
    """Images of each mode."""
    photo = Image.fromarray(colours())
    grey = photo.convert("L")
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "PA", "RGBX", "La", "RGBa"):
        try:
            yield mode, (grey if mode in ("1", "LA", "La") else photo).convert(mode)
        except ValueError:
            continue
    see_through = photo.convert("RGBA")
    see_through.putalpha(grey)
    yield "RGBA, see-through", see_through
    palette = photo.convert("P")
    palette.info["transparency"] = 3
    yield "P with a colour that is see-through", palette
    yield "16 bits", Image.fromarray(gradient(65535).astype(np.uint16))
    yield "16 bits, dark", Image.fromarray(gradient(255).astype(np.uint16))
    yield "32 bits", Image.fromarray(gradient(2**31 - 1).astype(np.int32))
    yield "32 bits, dark", Image.fromarray(gradient(255).astype(np.int32))
    yield "floating point", Image.fromarray(gradient(1).astype(np.float32))
    yield "floating point to 255", Image.fromarray(gradient(255).astype(np.float32))


def expected(path: Path) -> Any:
    """Returns what the docs promise: [height, width, 3] of uint8."""
    with Image.open(path) as image:
        if image.mode == "F":
            # Fractions are no pixels of 8 bits: there is nothing that they may come as.
            return None
        if image.mode.startswith("I"):
            upper = np.asarray(image).astype(np.int64) >> (_bits_of(image) - 8)
            return np.stack([upper.astype(np.uint8)] * 3, -1)
        return np.asarray(image.convert("RGB"))


def _bits_of(image: Image.Image) -> int:
    if image.format == "TIFF":
        return int(image.tag_v2[258][0])  # type: ignore[attr-defined]
    return 16


def case(kind: str, folder: Path, name: str, save: Callable[[Path], None], values: Any = None) -> Iterator[Written]:
    """Writes an image into a folder of its own; nothing if the form cannot hold it."""
    below = folder / f"{kind}-{name}".replace("/", " ")
    below.mkdir()
    path = below / name
    try:
        save(path)
        found = expected(path) if values is None else values
    except (OSError, ValueError, TypeError, KeyError, SyntaxError):
        return
    words = ("mode", "bits", "floating", "float", "image")
    yield Written(f"{kind}, {name}", below, [found], "image", words)


def saved(kind: str, folder: Path, name: str, image: Image.Image, **options: Any) -> Iterator[Written]:
    """Returns the case of an image that Pillow saves."""
    yield from case(kind, folder, name, lambda path: image.save(path, **options))


@tool("folder", "Pillow, modes")
def pillow_modes(folder: Path) -> Iterator[Written]:
    for kind, image in modes():
        for ending in ("png", "jpg", "tif", "gif", "bmp", "webp", "ppm", "pgm"):
            options = {"quality": 95} if ending == "jpg" else {}
            yield from saved(kind, folder, f"x.{ending}", image, **options)


OPTIONS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "jpg": {
        "progressive": {"progressive": True}, "no subsampling": {"subsampling": 0}, "quality 1": {"quality": 1},
        "quality 100": {"quality": 100}, "a profile": {"icc_profile": b"x" * 200}, "a comment": {"comment": b"a"},
        "restarts": {"restart_marker_blocks": 1},
    },
    "png": {"interlaced": {"interlace": 1}, "level 9": {"compress_level": 9}, "2 bits": {"bits": 2}},
    "tif": {
        name: {"compression": name}
        for name in ("raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg", "zstd", "lzma", "group4")
    },
}  # fmt: skip


@tool("folder", "Pillow, options")
def pillow_options(folder: Path) -> Iterator[Written]:
    photo = Image.fromarray(colours())
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        for ending in ("jpg", "png", "tif", "webp"):
            yield from saved(f"turned {turn}", folder, f"x.{ending}", photo, exif=exif)
    turned = photo.transpose(Image.Transpose.ROTATE_180)
    for ending in ("gif", "png", "webp", "tif"):
        yield from saved("two frames", folder, f"x.{ending}", photo, save_all=True, append_images=[turned])
    for ending, kinds in OPTIONS.items():
        for kind, options in kinds.items():
            image = {"group4": photo.convert("1"), "2 bits": photo.quantize(4)}.get(kind, photo)
            yield from saved(kind, folder, f"x.{ending}", image, **options)
    yield from saved("JPEG named .png", folder, "x.png", photo, format="JPEG")
    for ending in ("jp2", "avif", "ico", "tga", "pcx", "sgi", "dds", "jfif", "jpe", "dib"):
        form = {"jfif": "JPEG", "jpe": "JPEG"}.get(ending)
        for one in saved("other endings", folder, f"x.{ending}", photo, format=form):
            data = (one.path / f"x.{ending}").read_bytes()
            yield Written(one.kind, one.path, [data], "data", (ending,))


@tool("folder", "OpenCV", "cv2")
def opencv_images(folder: Path) -> Iterator[Written]:
    import cv2

    arrays = {
        "8 bits": colours(), "grey": gradient().astype(np.uint8), "16 bits, grey": gradient(65535).astype(np.uint16),
        "16 bits, colours": (colours().astype(np.uint16) << 8) + 77,
        "four channels": np.dstack([colours(), gradient().astype(np.uint8)]),
        "floating point": (colours() / 255).astype(np.float32),
        "32 bits": gradient(2**31 - 1).astype(np.int32),
    }  # fmt: skip
    for kind, array in arrays.items():
        for ending in ("png", "jpg", "tif", "bmp", "webp", "ppm"):

            def save(path: Path, array: Any = array) -> None:
                try:
                    if not cv2.imwrite(str(path), array):
                        raise ValueError("cannot be written")
                except cv2.error as error:
                    raise ValueError(str(error)) from error

            values = array[..., ::-1] >> 8 if kind == "16 bits, colours" and ending in ("png", "tif") else None
            yield from case(kind, folder, f"x.{ending}", save, values if values is None else values.astype(np.uint8))


@tool("folder", "tifffile", "tifffile")
def tifffile_images(folder: Path) -> Iterator[Written]:
    grey = gradient()
    arrays = {name: (grey * (np.iinfo(name).max // 255)).astype(name) for name in ("u1", "u2", "u4", "i1", "i2", "i4")}
    for name in ("f2", "f4", "f8"):
        arrays[name] = (grey / 255).astype(name)
    arrays["three colours"] = colours()
    arrays["three colours of 16 bits"] = colours().astype("u2") << 8
    arrays["truth values"] = grey > 128
    # Pillow reads neither of these as it should: the upper 8 bits, by docs/howto/images.md.
    known = {"u2": np.stack([(arrays["u2"] >> 8).astype("u1")] * 3, -1), "three colours of 16 bits": colours()}
    for kind, array in arrays.items():
        for order in "<>":
            yield from tiff(f"{kind} {order}", folder, array, known.get(kind), byteorder=order)
    for kind, options in {
        "tiles": {"tile": (16, 16)}, "planes": {"planarconfig": "separate"}, "strips": {"rowsperstrip": 2},
        "big": {"bigtiff": True}, "deflate": {"compression": "zlib", "predictor": True}, "ImageJ": {"imagej": True},
    }.items():  # fmt: skip
        data = np.moveaxis(colours(), -1, 0) if kind == "planes" else colours()
        yield from tiff(kind, folder, data, colours(), photometric="rgb", **options)


def tiff(kind: str, folder: Path, array: Any, values: Any, **options: Any) -> Iterator[Written]:
    """Returns the case of an array that tifffile saves."""
    import tifffile

    yield from case(kind, folder, "x.tif", lambda path: tifffile.imwrite(path, array, **options), values)


@tool("folder", "ImageMagick", "-identify", "-convert")
def magick_images(folder: Path) -> Iterator[Written]:
    source = folder / "source.png"
    Image.fromarray(colours()).save(source)
    for kind, options in {
        "depth 1": ["-depth", "1"], "depth 4": ["-colors", "8", "-depth", "4"], "depth 16": ["-depth", "16"],
        "grey of 16 bits": ["-colorspace", "Gray", "-depth", "16"], "palette": ["-colors", "8", "-type", "Palette"],
        "CMYK": ["-colorspace", "CMYK"], "grey and alpha": ["-colorspace", "Gray", "-alpha", "on"],
        "stripped": ["-strip"], "gamma": ["-gamma", "0.5"], "interlaced": ["-interlace", "Line"],
    }.items():  # fmt: skip
        for ending in ("png", "jpg", "tif", "bmp", "ppm", "pgm", "webp", "gif"):

            def save(path: Path, options: list[str] = options) -> None:
                command = ["convert", str(source), *options, str(path)]
                if subprocess.run(command, capture_output=True, timeout=30).returncode:
                    raise ValueError("cannot be written")

            yield from case(kind, folder, f"x.{ending}", save)
