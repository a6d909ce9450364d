"""Which form a folder is opened in: by most of its files; where several readings are possible, that is an error."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import headrace
from headrace.core.errors import FormatError, UsageError


def photos(folder: Path, names: list[str]) -> Path:
    """Makes small pictures."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / name, "JPEG")
    return folder


CLASSES = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(5)]
FLAT = [f"{number}.jpg" for number in range(20)]


def _csv(path: Path) -> None:
    path.write_text("file,label\n0.jpg,1\n")


def _jsonl(path: Path) -> None:
    path.write_text('{"file_name": "0.jpg", "text": "a"}\n')


def _npy(path: Path) -> None:
    np.save(path, np.zeros(3))


def _parquet(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


STRAY: dict[str, Callable[[Path], None]] = {
    "labels.csv": _csv,
    "metadata.jsonl": _jsonl,
    "features.npy": _npy,
    "train.parquet": _parquet,
}


@pytest.mark.quick
@pytest.mark.parametrize("names", [FLAT, CLASSES], ids=["flat", "classes"])
@pytest.mark.parametrize("stray", STRAY)
def test_one_file_beside_photos_does_not_decide_the_form(stray: str, names: list[str], tmp_path: Path) -> None:
    photos(tmp_path, names)
    STRAY[stray](tmp_path / stray)
    with pytest.raises(FormatError, match="read in several ways") as caught:
        headrace.open(tmp_path)
    told = str(caught.value)
    assert f"{len(names)} images" in told
    assert stray in told
    # What the error says works.
    assert "format='folder'" in told
    dataset = headrace.open(tmp_path, format="folder")
    assert ("label" in dataset.schema.names) == (names is CLASSES)
    assert sum(len(batch["path"]) for batch in headrace.DataLoader(dataset, 4)) == len(names)
    assert len(headrace.open(tmp_path / stray)) in (1, 3)


@pytest.mark.quick
@pytest.mark.parametrize("note", ["README.md", "notes.txt", "about.json"])
def test_a_note_beside_classes_costs_no_labels(note: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos(tmp_path, CLASSES)
    (tmp_path / note).write_text("{}")
    dataset = headrace.open(tmp_path)
    assert len(dataset) == 10
    assert dataset.schema["label"].labels == ("cat", "dog")
    assert note in caplog.text
    assert len(list(headrace.DataLoader(dataset, 5))) == 2


def test_parts_that_look_like_classes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos(tmp_path, [f"{part}/{name}" for part in ("train", "val") for name in CLASSES])
    assert headrace.open(tmp_path).schema["label"].labels == ("train", "val")
    assert "which look like parts of a dataset" in caplog.text
    caplog.clear()
    assert headrace.open(tmp_path / "train").schema["label"].labels == ("cat", "dog")
    assert caplog.text == ""


def test_photos_beside_classes_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    photos(tmp_path, [*CLASSES, "0.jpg"])
    dataset = headrace.open(tmp_path)
    assert (len(dataset), "label" in dataset.schema.names) == (11, False)
    assert "no column label" in caplog.text


@pytest.mark.quick
@pytest.mark.parametrize(
    "litter",
    [
        "cat/0.jpg~",
        "cat/0.jpg.bak",
        "@eaDir/0.jpg",
        "cat/Thumbs.db",
        "dog/desktop.ini",
        "__MACOSX/cat/0.jpg",
        "cat/._0.jpg",
    ],
)
def test_what_file_managers_leave_is_no_sample(litter: str, tmp_path: Path) -> None:
    photos(tmp_path, CLASSES)
    (tmp_path / litter).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / litter).write_bytes(b"\xd0\xcf")
    dataset = headrace.open(tmp_path)
    assert dataset.schema["label"].labels == ("cat", "dog")
    assert sum(len(batch["label"]) for batch in headrace.DataLoader(dataset, 4)) == 10


def _delta(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)
    _parquet(folder / "0.parquet")


def _iceberg(folder: Path) -> None:
    (folder / "metadata").mkdir(parents=True)
    (folder / "metadata" / "v1.metadata.json").write_text("{}")
    (folder / "data").mkdir()
    _parquet(folder / "data" / "0.parquet")


def _zarr(folder: Path) -> None:
    folder.mkdir()
    (folder / "zarr.json").write_text("{}")
    (folder / "c").mkdir()
    (folder / "c" / "0").write_bytes(b"x")


def _index(word: str, file: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "index.json").write_text(json.dumps({word: []}))
        (folder / file).write_bytes(b"x")

    return make


def _files(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"x")

    return make


OTHERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "Delta": (_delta, ("Delta", "file_uris")),
    "Iceberg": (_iceberg, ("Iceberg", "plan_files")),
    "Zarr": (_zarr, ("Zarr", "np.save")),
    "MDS": (_index("shards", "shard.00000.mds"), ("MDS", "StreamingDataset")),
    "LitData": (_index("chunks", "chunk-0-0.bin"), ("LitData", "StreamingDataset")),
    "TFRecord": (_files("train-00000-of-00001.tfrecord"), ("TFRecord", "TarWriter")),
    "ArrayRecord": (_files("a.array_record"), ("ArrayRecord", "data source")),
    "Lance": (_files("_versions/1.manifest", "data/a.lance"), ("Lance", "to_table")),
    "LeRobot": (_files("meta/info.json", "data/chunk-000/e.parquet"), ("LeRobot", "chunk-000")),
    "COCO": (_files("annotations/instances.json", "images/0.jpg"), ("COCO", "pycocotools")),
    "safetensors": (_files("a.safetensors"), ("safetensors", "np.savez")),
    "DatasetDict": (_files("dataset_dict.json", "train/state.json"), ("DatasetDict", "train")),
    "Hive": (_files("label=cat/0.parquet", "label=dog/0.parquet"), ("folders by value", "hive")),
    "parts": (_files("train/0.parquet", "test/0.parquet"), ("sub-folders", "train")),
    "tar in parts": (_files("train/0.tar", "test/0.tar"), ("sub-folders", "train")),
    "npz": (_files("0.npz", "1.npz"), (".npz", "ConcatDataset")),
    "HDF5": (_files("0.h5", "1.h5"), (".h5", "ConcatDataset")),
    "npy in classes": (_files("cat/0.npy", "dog/0.npy"), ("memmap", "sub-folders")),
    "two forms": (_files("a.csv", "b.jsonl"), ("csv", "jsonl")),
    "a packed shard": (_files("0.tar", "1.tar.gz"), ("compressed", "1.tar.gz")),
}


@pytest.mark.quick
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_known_and_not_read_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    make, told = OTHERS[kind]
    make(tmp_path / "data")
    with pytest.raises(FormatError) as caught:
        headrace.open(tmp_path / "data")
    assert all(word in str(caught.value) for word in (*told, "fix:")), str(caught.value)
    # Who wants the bytes says so.
    assert len(headrace.open(tmp_path / "data", format="folder")) > 0


@pytest.mark.parametrize("make", [_delta, _iceberg])
def test_a_pattern_of_files_of_old_versions_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "table")
    folder = tmp_path / "table" / ("data" if make is _iceberg else "")
    with pytest.raises(FormatError, match=r"Delta|Iceberg"):
        headrace.open(folder / "*.parquet")
    assert len(headrace.open([folder / "0.parquet"])) == 1


def test_the_data_of_an_iceberg_table_are_no_table_of_their_own(tmp_path: Path) -> None:
    _iceberg(tmp_path / "table")
    with pytest.raises(FormatError, match="Iceberg"):
        headrace.open(tmp_path / "table" / "data")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("x.safetensors", b"x", "safetensors"),
        ("x.tfrecord-00000-of-00002", b"x", "TFRecord"),
        ("x.json", b'{"images": [', "COCO"),
        ("x.json", b'[{"a": 1}]', "one object a line"),
        ("x.zip", b"PK\x03\x04", "zip"),
        ("x.tar.gz", b"\x1f\x8b", "compressed"),
        ("all.pt", b"PK\x03\x04", "torch.save"),
        ("x.feather", b"FEA1", "version 1"),
        ("x.h5ad", b"\x89HDF\r\n\x1a\n", "AnnData"),
    ],
)
def test_a_file_of_another_kind_is_named(name: str, data: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=told):
        headrace.open(tmp_path / name)


def test_numbered_arrays_are_asked_about(tmp_path: Path) -> None:
    for number in range(12):
        np.save(tmp_path / f"{number:03}.npy", np.full((5, 3), number))
    with pytest.raises(FormatError, match="12 numbered files"):
        headrace.open(tmp_path)
    assert len(headrace.open(tmp_path, format="memmap").schema) == 12


def test_links_to_nothing_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "0.bin").write_bytes(b"x")
    (tmp_path / "1.bin").symlink_to("gone")
    with caplog.at_level(logging.WARNING, "headrace"):
        assert len(headrace.open(tmp_path)) == 1
    assert "1.bin" in caplog.text


def test_a_class_may_be_a_link_to_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, dogs = tmp_path / "data", tmp_path / "elsewhere/dogs"
    photos(tmp_path, ["data/cat/0.jpg", "elsewhere/dogs/small/0.jpg", "private.jpg"])
    (data / "dog").symlink_to(dogs)
    # None of these brings a picture once more, or one from above.
    (data / "cat/up").symlink_to(data)
    (data / "above").symlink_to("..")
    (data / "again").symlink_to("cat")
    (data / "itself").symlink_to("itself")
    (dogs / "around").symlink_to(dogs)

    dataset: Any = headrace.open(data)
    assert ["cat/0.jpg", "dog/small/0.jpg"] == [dataset[index]["path"] for index in range(len(dataset))]
    assert [0, 1] == [dataset[index]["label"] for index in range(len(dataset))]
    assert "5 links are left out" in caplog.text
    for target in ("elsewhere/dogs/small", "elsewhere/dogs/new", "data/dog/new", "elsewhere"):
        with pytest.raises(UsageError, match="source and target overlap"):
            headrace.pack(data, tmp_path / target)


@pytest.mark.parametrize("listed", [False, True])
def test_data_without_columns_are_an_error(listed: bool, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    place: Any = [tmp_path / "a.jsonl"] if listed else tmp_path / "a.jsonl"
    with pytest.raises(FormatError, match="the data have no columns"):
        headrace.open(place)


def test_a_file_may_be_named_like_a_range(tmp_path: Path) -> None:
    _parquet(tmp_path / "a{0..3}.parquet")
    assert len(headrace.open(tmp_path / "a{0..3}.parquet")) == 1
    shutil.move(tmp_path / "a{0..3}.parquet", tmp_path / "a0.parquet")
    dataset: Any = headrace.open(tmp_path / "a{0..0}.parquet")
    assert len(dataset) == 1
