"""An error about one sample names the file that holds it, on this machine as in a store."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import headrace
from headrace.core.errors import FormatError, SampleError
from headrace.transforms.images import TrainImages
from tests.servers.faulty import FaultyServer

DAMAGED = 2
SECRET = "signature=SECRET"


def picture(number: int) -> bytes:
    """Returns a JPEG; number `DAMAGED` lacks its end."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(stream, "JPEG")
    data = stream.getvalue()
    if number == DAMAGED:
        return data[:200]
    return data


def write_folder(path: Path) -> str:
    (path / "photos" / "cat").mkdir(parents=True)
    for number in range(4):
        (path / "photos" / "cat" / f"{number}.jpg").write_bytes(picture(number))
    return "photos"


def write_tar(path: Path) -> str:
    path.mkdir()
    for shard in range(2):
        with tarfile.open(path / f"shard-{shard}.tar", "w") as tar:
            for number in (2 * shard, 2 * shard + 1):
                info = tarfile.TarInfo(f"s{number}.jpg")
                data = picture(number)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return "shard-{0..1}.tar"


def write_parquet(path: Path) -> str:
    path.mkdir()
    for file in range(2):
        table = pa.table({"jpg": [picture(2 * file), picture(2 * file + 1)]})
        pq.write_table(table, path / f"part-{file}.parquet")
    return "part-{0..1}.parquet"


FORMS: dict[str, tuple[Callable[[Path], str], str, str]] = {
    "folder": (write_folder, "image", "photos/cat/2.jpg"),
    "tar": (write_tar, "jpg", "shard-1.tar, file s2.jpg"),
    "parquet": (write_parquet, "jpg", "part-1.parquet, row group 0, row 0, column 'jpg'"),
}
"""Each with what writes it, the column of its images, and how errors name the one that is damaged."""


def open_at(server: FaultyServer, place: str, name: str, column: str) -> tuple[Any, str]:
    """Returns data of a folder "b", and what stands in front of its names in errors."""
    if place == "local":
        return headrace.open(f"{server.folder}/b/{name}", [column]), f"{server.folder}/b/"
    if place == "http":
        return headrace.open(f"{server.url}/b/{name}?{SECRET}", [column]), f"{server.url}/b/"
    return headrace.open(f"s3://b/{name}", [column], options=server.s3_options), "s3://b/"


def all_by_key(data: Any) -> None:
    for key in range(len(data)):
        data[key]


def all_batches(data: Any) -> None:
    list(headrace.DataLoader(data, batch_size=4))


def all_in_stream(data: Any) -> None:
    list(data.stream())


# A web server cannot list its folders.
@pytest.mark.parametrize(
    ("form", "place"),
    [(form, place) for form in FORMS for place in ("local", "s3", "http") if (form, place) != ("folder", "http")],
)
@pytest.mark.parametrize("read", [all_by_key, all_batches, all_in_stream])
def test_a_damaged_image_is_named(
    faulty_server: FaultyServer, form: str, place: str, read: Callable[..., None]
) -> None:
    write, column, expected = FORMS[form]
    name = write(faulty_server.folder / "b")
    data, begin = open_at(faulty_server, place, name, column)
    with pytest.raises(SampleError) as caught:
        read(data)
    assert f"place:    {begin}{expected}\n" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("place", ["local", "s3"])
@pytest.mark.parametrize("form", ["folder", "tar"])
def test_a_step_that_decodes_names_the_file_of_the_sample(faulty_server: FaultyServer, form: str, place: str) -> None:
    write, column, expected = FORMS[form]
    data, begin = open_at(faulty_server, place, write(faulty_server.folder / "b"), column)
    stepped = data.map(TrainImages(16), on=column)
    for read in (lambda: stepped[DAMAGED], lambda: all_batches(stepped), lambda: all_batches(stepped.select([3, 2]))):
        with pytest.raises(SampleError) as caught:
            read()
        notes = " ".join(caught.value.__notes__)
        assert f"{begin}{expected}".partition(", file")[0] in notes

    with pytest.raises(SampleError) as caught:
        list(data.stream().map(TrainImages(16), on=column))
    assert f"{begin}{expected}" in " ".join(caught.value.__notes__)


@pytest.mark.parametrize("place", ["local", "s3"])
def test_the_quarantine_names_the_file(faulty_server: FaultyServer, place: str) -> None:
    data, begin = open_at(faulty_server, place, write_folder(faulty_server.folder / "b"), "image")
    loader = headrace.DataLoader(data, batch_size=2, on_error="skip")
    list(loader)
    assert [bad.path for bad in loader.faults.records] == [f"{begin}photos/cat/2.jpg"]


@pytest.mark.parametrize("place", ["local", "s3"])
def test_an_array_in_a_shard_is_named_with_its_own_shard(faulty_server: FaultyServer, place: str) -> None:
    folder = faulty_server.folder / "b"
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            stream = io.BytesIO()
            np.save(stream, np.arange(5))
            data = stream.getvalue()[: 128 if shard else None]
            info = tarfile.TarInfo(f"s{shard}.x.npy")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

    dataset, begin = open_at(faulty_server, place, "shard-{0..1}.tar", "x")
    with pytest.raises(FormatError) as caught:
        all_batches(dataset)
    assert f"place:    {begin}shard-1.tar, file s1.x.npy\n" in str(caught.value)


def test_samples_without_files_are_numbered(tmp_path: Path) -> None:
    table = pa.table({"jpg": [picture(number) for number in range(4)]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)

    data = headrace.open(tmp_path / "a.arrow")
    for read in (all_by_key, all_batches, all_in_stream):
        with pytest.raises(SampleError, match=r"a\.arrow, sample 2, column 'jpg'"):
            read(data)
