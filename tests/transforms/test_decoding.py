"""Whatever is an image becomes uint8 [height, width, 3]; whatever is not says why."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headrace.core.errors import MissingExtraError, SampleError, UsageError
from headrace.transforms import decode, decoders, size_of
from headrace.transforms.headers import is_complete, read_header
from tests.pairs import pairwise
from tests.transforms.pictures import by_pillow, difference, encoded, smooth

PICTURE = smooth(75, 101)
JPEG, PNG = encoded(PICTURE, quality=90), encoded(PICTURE, "PNG")


def without(monkeypatch: pytest.MonkeyPatch, *libraries: str) -> None:
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)


def only(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    pytest.importorskip(library)
    others = {"simplejpeg", "cv2", "PIL"} - {library}
    without(monkeypatch, *others)


# ---- what is taken


def test_bytes_paths_arrays_and_images_give_the_same_pixels(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(PNG)
    flat = np.frombuffer(PNG, np.uint8)
    with Image.open(path) as image:
        forms: list[Any] = [PNG, bytearray(PNG), memoryview(PNG), flat, torch.tensor(flat), str(path), path, image]
        forms += [PICTURE, torch.from_numpy(PICTURE.transpose(2, 0, 1).copy())]
        for form in forms:
            decoded = decode(form)
            assert decoded.dtype == np.uint8
            assert np.array_equal(PICTURE, decoded), type(form)
            assert size_of(form) == (75, 101)


@pytest.mark.parametrize("library", ["simplejpeg", "cv2", "PIL"])
def test_each_decoder_makes_the_pixels_that_pillow_makes(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gray = encoded(PICTURE[..., 0], quality=90)
    expected = [by_pillow(JPEG), by_pillow(gray)]
    only(monkeypatch, library)
    for data, pixels in zip((JPEG, gray), expected, strict=True):
        assert difference(pixels, decode(data)).max() <= 1


@pytest.mark.parametrize("library", ["cv2", "PIL"])
def test_png_does_not_depend_on_the_decoder(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, library)
    assert np.array_equal(PICTURE, decode(PNG))


def test_gray_palette_transparent_and_cmyk_images_become_rgb() -> None:
    image = Image.fromarray(PICTURE)
    forms = {
        "gray": encoded(image.convert("L"), "PNG"),
        "gray with alpha": encoded(image.convert("LA"), "PNG"),
        "palette": encoded(image.quantize(32), "PNG"),
        "bits": encoded(image.convert("1"), "PNG"),
        "alpha": encoded(image.convert("RGBA"), "PNG"),
        "cmyk": encoded(image.convert("CMYK"), "JPEG", quality=95),
        "webp": encoded(image, "WEBP", lossless=True),
        "progressive": encoded(image, "JPEG", progressive=True),
        "tiff": encoded(image, "TIFF"),
    }
    for name, data in forms.items():
        assert size_of(data) == (75, 101), name
        assert np.array_equal(by_pillow(data), decode(data)), name


def test_a_transparent_palette_keeps_its_colours_without_a_warning() -> None:
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 240, 120, 10])
    decoded = decode(encoded(image, "PNG", transparency=bytes([255, 128])))
    assert decoded[0, 0].tolist() == [240, 120, 10]


def test_sixteen_bits_keep_the_upper_eight() -> None:
    levels = np.array([[0, 255, 256], [32768, 65280, 65535]], np.uint16)
    expected = np.repeat((levels >> 8).astype(np.uint8)[..., None], 3, axis=2)
    assert np.array_equal(expected, decode(encoded(Image.fromarray(levels), "PNG")))
    assert np.array_equal(expected, decode(levels))


def test_arrays_of_one_or_four_channels_become_three() -> None:
    gray = PICTURE[..., :1]
    assert np.array_equal(np.repeat(gray, 3, axis=2), decode(gray))
    assert np.array_equal(decode(gray), decode(gray[..., 0]))
    assert np.array_equal(PICTURE, decode(np.dstack([PICTURE, gray])))


def test_orientation_is_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    data = encoded(Image.fromarray(PICTURE), "JPEG", exif=exif)
    assert decode(data).shape == (75, 101, 3)
    without(monkeypatch, "simplejpeg")
    assert decode(data).shape == (75, 101, 3)


# ---- smaller than whole


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(None, (75, 101)), (75, (75, 101)), ((38, 51), (38, 51)), ((39, 51), (75, 101)), (19, (19, 26)), (1, (10, 13))],
)
@pytest.mark.parametrize("library", ["simplejpeg", "cv2", "PIL"])
def test_a_jpeg_is_decoded_at_the_smallest_scale_that_will_do(
    library: str, wanted: Any, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, library)
    assert decode(JPEG, at_least=wanted).shape == (*expected, 3)


def test_a_reduced_image_is_near_the_whole_one_made_smaller() -> None:
    data = encoded(smooth(480, 640), quality=92)
    for divisor in (2, 4, 8):
        size = 640 // divisor, 480 // divisor
        expected = np.asarray(Image.fromarray(by_pillow(data)).resize(size, Image.Resampling.BOX))
        far = difference(expected, decode(data, at_least=(size[1], size[0])))
        assert far.mean() < 1
        assert np.percentile(far, 99) <= 4


def test_formats_other_than_jpeg_are_decoded_whole() -> None:
    assert np.array_equal(PICTURE, decode(PNG, at_least=10))


# ---- what is refused


def huge_png(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


DAMAGED = {
    "empty": b"",
    "text": b"this is no image at all, only text",
    "cut jpeg": JPEG[: len(JPEG) // 2],
    "jpeg without a scan": JPEG[:200],
    "two bytes": JPEG[:2],
    "cut png": PNG[: len(PNG) // 2],
    "png with wrong numbers": PNG[:100] + bytes(60) + PNG[160:],
    "bomb": huge_png(60_000),
}


@pytest.mark.parametrize("missing", [(), ("simplejpeg",), ("simplejpeg", "cv2"), ("PIL",)], ids=str)
@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_decoded_names_its_place(
    name: str, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "PIL" in missing:
        pytest.importorskip("cv2")
    without(monkeypatch, *missing)
    with pytest.raises(SampleError) as caught:
        decode(DAMAGED[name], place="sample 7")
    for word in ("place:    sample 7", "found:", "expected:", "fix:"):
        assert word in str(caught.value)


@pytest.mark.parametrize("missing", [(), ("simplejpeg", "cv2"), ("PIL",), ("PIL", "simplejpeg")], ids=str)
@pytest.mark.parametrize("data", [JPEG, PNG], ids=["jpeg", "png"])
def test_a_bomb_is_refused_before_it_is_decoded(
    data: bytes, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "PIL" in missing:
        pytest.importorskip("cv2")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    monkeypatch.setattr(decoders, "PIXEL_LIMIT", 1000)
    without(monkeypatch, *missing)
    with pytest.raises(SampleError, match=r"bomb|75 x 101 pixels"):
        decode(data)


def test_what_is_cut_off_is_known_by_its_end() -> None:
    for data in (JPEG, PNG):
        header = read_header(memoryview(data))
        assert header is not None
        assert is_complete(memoryview(data), header)
        assert is_complete(memoryview(data + bytes(9)), header)
        assert not is_complete(memoryview(data[:-1]), header)


def test_a_damaged_file_is_named_and_a_missing_one_too(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(JPEG[:300])
    with pytest.raises(SampleError, match=r"bad\.jpg"):
        decode(tmp_path / "bad.jpg")
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg"):
        decode(tmp_path / "gone.jpg")


def test_the_size_of_a_bomb_can_be_asked_for() -> None:
    assert size_of(huge_png(60_000)) == (60_000, 60_000)


@pytest.mark.parametrize(
    "value",
    [7, None, {"image": b""}, np.zeros((4, 5, 3)), np.zeros((3, 4, 5), np.uint8), np.zeros((0, 4, 3), np.uint8)],
    ids=["number", "none", "dictionary", "floats", "channels first", "no pixels"],
)
def test_what_is_no_image_is_a_mistake_of_the_caller(value: Any) -> None:
    with pytest.raises(UsageError, match="expected:"):
        decode(value)


def test_without_any_decoder_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "simplejpeg", "cv2", "PIL")
    with pytest.raises(MissingExtraError, match=r"headrace\[images\]"):
        decode(JPEG)
    assert size_of(JPEG) == (75, 101)
    assert np.array_equal(PICTURE, decode(PICTURE))


def test_a_jpeg_with_every_byte_changed_in_turn_decodes_or_says_why() -> None:
    data = encoded(smooth(24, 24), quality=60)
    for place in range(2, len(data), 5):
        changed = bytearray(data)
        changed[place] ^= 0x5A
        try:
            height, width, channels = decode(bytes(changed), at_least=12).shape
        except SampleError:
            continue
        assert channels == 3
        assert height * width > 0


FAULTY = {
    "another JFIF": JPEG.replace(b"JFIF\0\1", b"JFIF\0\2", 1),
    "zeros before its end": JPEG[:-2] + bytes(16) + JPEG[-2:],
    "a zero between segments": JPEG[:20] + b"\0" + JPEG[20:],
}
"""JPEGs with the right pixels, of which libjpeg has something to say."""


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        *((name, missing) for name in FAULTY for missing in ((), ("simplejpeg", "cv2"))),
        ("zeros before its end", ("cv2", "PIL")),
    ],
)
def test_a_fault_that_touches_no_pixel_does_not_matter(
    name: str, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = decode(JPEG)
    without(monkeypatch, *missing)
    assert np.array_equal(expected, decode(FAULTY[name]))


def test_only_faults_in_pixels_count_as_damage() -> None:
    pytest.importorskip("simplejpeg")
    told = {name: decoders.damage_in(data) for name, data in FAULTY.items()}
    assert [name for name, damage in told.items() if damage is not None] == ["zeros before its end"]
    assert decoders.damage_in(JPEG) is decoders.damage_in(PNG) is None


@pytest.mark.parametrize(
    ("side", "mode", "missing"),
    pairwise(range(1, 9), ["RGB", "CMYK", "L"], [(), ("simplejpeg",), ("simplejpeg", "cv2")]),
)
def test_the_smallest_jpegs_are_reduced_alike_by_all(
    side: int, mode: str, missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded(Image.fromarray(smooth(side, side, seed=side)).convert(mode), quality=95)
    whole = decode(data)
    without(monkeypatch, *missing)
    for wanted in (1, 2):
        reduced = decode(data, at_least=wanted)
        assert np.array_equal(whole, reduced) or side == 8
        assert min(reduced.shape[:2]) >= min(wanted, side)
