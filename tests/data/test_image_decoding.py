"""Images of every mode become RGB, and files that cannot be decoded say why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from headrace import ImageFolder
from headrace.core.errors import MissingExtraError, SampleError
from headrace.data.image_folder import load_rgb
from headrace.transforms import decoders, decoding
from tests.belongings import open_files
from tests.data.pictures import ORANGE, save


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """One cat and one dog."""
    save(tmp_path / "cat/1.png")
    save(tmp_path / "dog/1.png")
    return tmp_path


# ---- modes


def test_a_palette_image_with_transparency_keeps_its_colours(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, *ORANGE])
    image.save(tmp_path / "x.png", transparency=bytes([255, 128]))
    loaded = load_rgb(str(tmp_path / "x.png"))
    assert (loaded.mode, loaded.getpixel((0, 0))) == ("RGB", ORANGE)


@pytest.mark.parametrize(
    ("mode", "color", "suffix", "expected"),
    [
        ("L", 77, ".png", (77, 77, 77)),
        ("L", 77, ".jpg", (77, 77, 77)),
        ("LA", (77, 0), ".png", (77, 77, 77)),
        ("1", 1, ".png", (255, 255, 255)),
        ("RGBA", (*ORANGE, 0), ".png", ORANGE),
        ("CMYK", (0, 0, 0, 255), ".jpg", (0, 0, 0)),
        ("CMYK", (0, 255, 0, 0), ".jpg", (255, 0, 255)),
        ("I;16", 0x8040, ".png", (0x80, 0x80, 0x80)),
        ("I;16", 0x8040, ".tif", (0x80, 0x80, 0x80)),
        ("I", 0x8040, ".png", (0x80, 0x80, 0x80)),
    ],
)
def test_every_mode_becomes_rgb(
    tmp_path: Path, mode: str, color: Any, suffix: str, expected: tuple[int, int, int]
) -> None:
    path = tmp_path / f"x{suffix}"
    image = Image.new(mode, (16, 16), color)
    if mode == "I":
        image = image.convert("I;16")
    image.save(path)
    loaded = load_rgb(str(path))
    assert (loaded.mode, loaded.size) == ("RGB", (16, 16))
    assert loaded.getpixel((8, 8)) == pytest.approx(expected, abs=2)


def test_16_bit_gray_in_a_pgm_file_keeps_its_upper_bits(tmp_path: Path) -> None:
    (tmp_path / "x.pgm").write_bytes(b"P5 2 1 65535\n" + bytes([0x12, 0x34, 0xFF, 0xFF]))
    loaded = load_rgb(str(tmp_path / "x.pgm"))
    assert [loaded.getpixel((0, 0)), loaded.getpixel((1, 0))] == [(0x12,) * 3, (0xFF,) * 3]


def test_exif_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 10)).save(tmp_path / "x.jpg", exif=exif)
    assert load_rgb(str(tmp_path / "x.jpg")).size == (20, 10)


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_reading_leaves_no_file_open_and_keeps_no_hold_on_it(tmp_path: Path) -> None:
    paths = [save(tmp_path / name) for name in ("x.png", "x.jpg", "x.tif")]
    Image.new("L", (9, 9)).save(tmp_path / "x.gif", save_all=True, append_images=[Image.new("L", (9, 9), 9)])
    images = [load_rgb(str(path)) for path in [*paths, tmp_path / "x.gif"]]
    assert open_files(tmp_path) == []
    paths[0].write_bytes(b"")
    assert images[0].getpixel((15, 11)) == ORANGE


# ---- samples that cannot be read


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("<html>404</html>")


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage", "found"),
    [
        ("x.jpg", cut, "truncated"),
        ("x.png", cut, "truncated"),
        ("x.jpg", empty, "no bytes"),
        ("x.jpg", text, "cannot identify an image (16 bytes, first b'<html>40')"),
        ("x.png", flip_a_byte, "broken data stream"),
    ],
)
def test_a_damaged_file_is_a_sample_error_that_names_it(
    tmp_path: Path, name: str, damage: Callable[[Path], None], found: str
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    (tmp_path / "cat").mkdir()
    path = tmp_path / "cat" / name
    Image.fromarray(noise).save(path)
    damage(path)
    folder = ImageFolder(tmp_path)
    with pytest.raises(SampleError) as caught:
        folder[0]
    what, place, found_line, expected, fix = str(caught.value).splitlines()
    assert what == "cannot decode an image"
    assert f"  place:    {path}" == place
    assert found in found_line
    assert expected == "  expected: an image that Pillow can decode"
    assert fix == "  fix:      restore or remove it"


def test_an_image_too_large_to_be_honest_is_a_sample_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "cat/1.png", size=(30, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    monkeypatch.setattr(decoders, "PIXEL_LIMIT", 300)
    with pytest.raises(SampleError, match="MAX_IMAGE_PIXELS") as caught:
        load_rgb(str(path))
    assert str(path) in str(caught.value)
    assert "900 pixels" in str(caught.value)


def test_a_file_that_vanished_stays_a_file_not_found_error(pets: Path) -> None:
    folder = ImageFolder(pets)
    (pets / "cat/1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"cat/1\.png"):
        folder[0]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_a_file_that_cannot_be_read_stays_an_os_error_that_names_the_path(
    pets: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*arguments: Any, **words: Any) -> Any:
        raise error

    monkeypatch.setattr(decoding, "open_regular", refuse)
    with pytest.raises(type(error), match=r"cat/1\.png"):
        ImageFolder(pets)[0]


def test_without_pillow_the_error_names_the_extra(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    folder = ImageFolder(pets)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[images\]'"):
        folder[0]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("kind", "ending"), [("<i4", ".tif"), ("<u4", ".tif"), ("<i2", ".tif"), ("<f4", ".tif"), ("<f4", ".pfm")]
)
def test_pixels_of_which_no_value_is_white_are_refused(tmp_path: Path, kind: str, ending: str) -> None:
    pixels = np.linspace(0, 1, 12 * 10).reshape(12, 10)
    pixels = (pixels if kind == "<f4" else pixels * 30_000).astype(kind)
    path = tmp_path / f"x{ending}"
    if ending == ".pfm":
        Image.fromarray(pixels).save(path, format="PPM")
    else:
        tifffile.imwrite(path, pixels)
    with pytest.raises(SampleError, match="no value is known to be white") as caught:
        load_rgb(str(path))
    assert str(path) in str(caught.value)
