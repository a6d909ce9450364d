"""Decoding no further than the crop: the same pixels, for every kind of JPEG, and damage noticed where it shows."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from headrace.core.errors import SampleError
from headrace.core.randomness.rng import begin_stream
from headrace.transforms import TrainImages, decode
from headrace.transforms.decoders import lent
from headrace.transforms.jpeg_rows import decode_upper, layout_of
from tests.transforms.pictures import by_pillow, encoded, smooth

simplejpeg = pytest.importorskip("simplejpeg")

SUBSAMPLINGS = ("444", "422", "420", "440", "411", "Gray")
TALL = smooth(203, 117, seed=3)
JPEG = encoded(TALL, quality=90)
FORMS = {
    "baseline": lambda: JPEG,
    "optimized": lambda: encoded(TALL, optimize=True),
    "progressive": lambda: encoded(TALL, progressive=True),
    "restarts": lambda: encoded(TALL, restart_marker_rows=1),
    "gray": lambda: encoded(TALL[..., 0]),
    "CMYK": lambda: encoded(Image.fromarray(TALL).convert("CMYK")),
    "EXIF": lambda: encoded(TALL, exif=b"Exif\0\0" + b"\xff\xc0\xff\xda" * 50),
    "PNG": lambda: encoded(TALL, "PNG"),
}


def view(value: Any, key: int = 5) -> np.ndarray:
    begin_stream(key)
    try:
        return TrainImages(64, scale=(0.05, 0.3))(value)
    finally:
        begin_stream(None)


@settings(deadline=None)
@given(
    height=st.integers(1, 150),
    width=st.integers(1, 90),
    rows=st.integers(1, 150),
    sampling=st.sampled_from(SUBSAMPLINGS),
    divisor=st.sampled_from((1, 2, 4, 8)),
    quality=st.sampled_from((30, 75, 95)),
)
def test_upper_rows_are_those_of_the_whole(
    height: int, width: int, rows: int, sampling: str, divisor: int, quality: int
) -> None:
    picture = smooth(height, width, seed=height * 100 + width)
    picture = picture[..., :1].copy() if sampling == "Gray" else picture
    color = "GRAY" if sampling == "Gray" else "RGB"
    data = simplejpeg.encode_jpeg(picture, quality, color, sampling)
    upper = decode_upper(memoryview(data), (height, width), rows, divisor, lent)
    if upper is None:
        return
    least = {"min_height": -(-height // divisor), "min_width": -(-width // divisor)} if divisor > 1 else {}
    whole = simplejpeg.decode_jpeg(data, "RGB", **least)
    needed = -(-rows // divisor)
    assert len(upper) < len(whole)
    assert np.array_equal(whole[:needed], upper[:needed])


def test_most_crops_that_end_above_the_lower_edge_are_decoded_in_part() -> None:
    done = [decode_upper(memoryview(JPEG), TALL.shape[:2], rows, 1, lent) for rows in range(10, 170, 10)]
    assert sum(one is not None for one in done) >= 14


@pytest.mark.parametrize("key", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_views_are_the_same_whether_the_rest_is_decoded_or_not(form: str, key: int) -> None:
    image = FORMS[form]()
    assert np.array_equal(view(decode(image), key), view(image, key))


def test_the_layout_is_told_of_plain_jpegs_only() -> None:
    layout = layout_of(memoryview(JPEG))
    assert layout is not None
    assert layout.unit == 16
    assert int.from_bytes(JPEG[layout.height_at : layout.height_at + 2], "big") == 203
    others = [
        encoded(TALL, progressive=True),
        encoded(TALL, restart_marker_rows=1),
        encoded(TALL, "PNG"),
        b"",
        JPEG[:80],
    ]
    assert [layout_of(memoryview(data)) for data in others] == [None] * 5


def test_a_small_image_after_a_large_one_in_the_same_memory() -> None:
    small = encoded(smooth(64, 40, seed=9), quality=90)
    expected = view(decode(small))
    view(JPEG)
    assert np.array_equal(expected, view(small))


@settings(deadline=None, max_examples=200)
@example(at=165, byte=1, key=3)  # wider than its data reach
@given(at=st.integers(0, 700), byte=st.integers(0, 255), key=st.integers(0, 9))
def test_a_changed_header_is_refused_or_gives_what_decoding_all_of_it_gives(at: int, byte: int, key: int) -> None:
    data = JPEG[:at] + bytes([byte]) + JPEG[at + 1 :]
    try:
        expected = view(decode(data), key)
    except SampleError:
        return
    with contextlib.suppress(SampleError):
        found = view(data, key)
        # Where data end too early, Pillow decodes the whole, and rounds otherwise than the decoder of the upper rows.
        if is_whole(data):
            assert np.array_equal(expected, found)
        else:
            assert expected.shape == found.shape


def is_whole(data: bytes) -> bool:
    """Tells whether the quick decoder finds no fault."""
    try:
        simplejpeg.decode_jpeg(data, "RGB")
    except ValueError:
        return False
    return True


def test_damage_is_noticed_down_to_the_crop_and_a_missing_end_always() -> None:
    noise = np.random.default_rng(0).bytes(400).replace(b"\xff", b"\xfe")
    below = JPEG[:-700] + noise + JPEG[-300:]
    decoded = decode_upper(memoryview(below), TALL.shape[:2], 100, 1, lent)
    assert decoded is not None
    assert np.array_equal(by_pillow(JPEG)[:100], decoded[:100])
    above = JPEG[:800] + noise + JPEG[1200:]
    assert decode_upper(memoryview(above), TALL.shape[:2], 180, 1, lent) is None
    with pytest.raises(SampleError):
        view(JPEG[: len(JPEG) // 2])
