"""`headrace pack --resize`: what it makes of images."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from headrace.data.convert.pack import pack
from headrace.data.convert.plan import PackOptions
from headrace.data.formats.columns import Block, column_from
from headrace.data.formats.columns.schema import Field, Schema
from tests.data.formats.columns import rows
from tests.data.formats.samples import read, write

pytestmark = pytest.mark.usefixtures("small_pieces")


def picture(size: tuple[int, int], kind: str = "JPEG") -> bytes:
    stream = BytesIO()
    Image.effect_noise(size, 90).convert("RGB").save(stream, kind)
    return stream.getvalue()


def album(path: Path, images: list[bytes]) -> Path:
    schema = Schema((Field("image", "bytes"), Field("label", "fixed", np.dtype(np.int64), (), ("cat", "dog"))))
    columns = {"image": column_from(schema["image"], images), "label": np.arange(len(images)) % 2}
    return write("arrow", path, [Block(schema, columns)])


@pytest.mark.quick(workers=1)
@pytest.mark.parametrize("workers", [1, 2])
def test_large_images_shrink_and_all_else_is_kept(tmp_path: Path, workers: int) -> None:
    sizes = [(64, 48), (40, 90), (20, 16), (16, 30), (300, 17)]
    images = [picture(size, kind) for size in sizes for kind in ("JPEG", "PNG")]
    source = album(tmp_path / "photos.arrow", images)
    pack(str(source), str(tmp_path / "small"), PackOptions(resize=16), workers=workers)
    made = read(tmp_path / "small")
    assert made.schema == read(source).schema
    assert rows(made, "label") == rows(read(source), "label")
    small = [Image.open(BytesIO(data)) for data in rows(made, "image")]
    assert [one.size for one in small[::2]] == [(21, 16), (16, 36), (20, 16), (16, 30), (282, 16)]
    assert rows(made, "image")[4:8] == images[4:8]
    assert [one.format for one in small] == ["JPEG", "PNG"] * 5
    assert made.columns["image"].values.nbytes < read(source).columns["image"].values.nbytes  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_pictures_are_turned_as_before(tmp_path: Path, kind: str) -> None:
    images = []
    for orientation in (*range(1, 9), 77):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        exif[ExifTags.Base.Make] = "a camera"
        stream = BytesIO()
        picture = Image.new("RGB", (60, 40), "black")
        picture.paste("white", (0, 0, 20, 20))
        picture.save(stream, kind, exif=exif)
        images.append(stream.getvalue())
    source = album(tmp_path / "photos.arrow", images)
    pack(str(source), str(tmp_path / "small"), PackOptions(resize=20), workers=1)
    made = rows(read(tmp_path / "small"), "image")
    for before, after in zip(images, made, strict=True):
        with Image.open(BytesIO(before)) as old, Image.open(BytesIO(after)) as new:
            tags = old.getexif()[ExifTags.Base.Orientation]
            assert dict(new.getexif()) == ({} if tags == 1 else {ExifTags.Base.Orientation: tags})
            upright = ImageOps.exif_transpose(old)
            smaller = ImageOps.exif_transpose(new)
            assert (upright.width, upright.height) == (2 * smaller.width, 2 * smaller.height)
            where = np.argwhere(np.asarray(smaller.convert("L")) > 128).mean(axis=0)
            assert np.allclose(2 * where, np.argwhere(np.asarray(upright.convert("L")) > 128).mean(axis=0), atol=2)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense" * 9], ids=str)
def test_broken_exif_is_no_broken_picture(tmp_path: Path, exif: bytes) -> None:
    plain = picture((40, 30))
    marker = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    source = album(tmp_path / "photos.arrow", [plain[:2] + marker + plain[2:]])
    pack(str(source), str(tmp_path / "small"), PackOptions(resize=16), workers=1)
    (made,) = rows(read(tmp_path / "small"), "image")
    with Image.open(BytesIO(made)) as image:
        assert (image.size, dict(image.getexif())) == ((21, 16), {})


@pytest.mark.quick(workers=1)
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path, workers: int, shuffle: int | None) -> None:
    images = [picture((40, 30)) for _ in range(20)]
    images[13] = images[13][:200]
    source = album(tmp_path / "photos.arrow", images)
    made = pack(str(source), str(tmp_path / "small"), PackOptions(resize=16, shuffle=shuffle), workers=workers)
    assert made.bad == 1
    assert made.bad_samples[0].startswith("sample 13: ")
    assert str(source) in made.bad_samples[0]
    kept = rows(read(tmp_path / "small"), "image")
    assert kept.count(images[13]) == 1
    assert sum(Image.open(BytesIO(data)).size == (21, 16) for data in kept if data != images[13]) == 19


def test_a_file_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(picture((40, 30))[: 200 if number == 1 else None])
    for options in (PackOptions("webdataset", resize=16), PackOptions("webdataset")):
        made = pack(str(tmp_path / "photos"), str(tmp_path / f"{options.resize}.tar"), options, workers=1)
        assert str(tmp_path / "photos" / "1.jpg") in made.bad_samples[0]


def _sixteen_bits() -> Image.Image:
    return Image.fromarray(np.linspace(0, 60000, 40 * 60).astype(np.uint16).reshape(40, 60))


def _palette() -> Image.Image:
    image = Image.fromarray((np.arange(40 * 60).reshape(40, 60) // 600).astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    return image


KINDS = {
    "16 bits": (_sixteen_bits, "PNG"),
    "palette": (_palette, "PNG"),
    "transparent": (lambda: Image.new("RGBA", (60, 40), (250, 100, 0, 128)), "PNG"),
    "webp": (lambda: Image.new("RGB", (60, 40), (250, 100, 0)), "WEBP"),
    "tiff": (_sixteen_bits, "TIFF"),
    "bmp": (lambda: Image.new("L", (60, 40), 7), "BMP"),
    "gif": (_palette, "GIF"),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", KINDS)
def test_a_picture_stays_a_file_of_its_kind_and_depth(name: str, tmp_path: Path) -> None:
    make, kind = KINDS[name]
    stream = BytesIO()
    make().save(stream, kind)
    source = album(tmp_path / "photos.arrow", [stream.getvalue()])
    pack(str(source), str(tmp_path / "small"), PackOptions(resize=20), workers=1)
    with Image.open(BytesIO(rows(read(tmp_path / "small"), "image")[0])) as small, Image.open(stream) as before:
        assert (small.format, small.mode, small.size) == (kind, before.mode, (30, 20))
        pixels = np.asarray(small)
        if name in ("palette", "gif"):
            assert set(np.unique(pixels)) <= set(np.unique(np.asarray(before)))
        elif kind != "WEBP":
            near = np.asarray(before)[20:22, 30:32].mean(axis=(0, 1))
            assert np.abs(pixels[10, 15].astype(float) - near).max() <= pixels.max() / 50
