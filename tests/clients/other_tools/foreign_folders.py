"""Folders and files of other kinds than headrace's sixteen forms, each made by its own tool if that can be installed.

Each has the words by which an error must name it, and the values that its own tool reads, should headrace read it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.clients.other_tools.comparison import COLUMN, Written

Make = Callable[[Path], Iterator[Written]]


@dataclass(frozen=True)
class Kind:
    """A kind of folder. `words`: one of them must be in an error about it."""

    name: str
    words: tuple[str, ...]
    make: Make
    needs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


KINDS: list[Kind] = []


def kind(name: str, *needs: str, words: tuple[str, ...] = ()) -> Callable[[Make], Make]:
    """Enters a function that makes folders into the table."""

    def enter(make: Make) -> Make:
        KINDS.append(Kind(name, words or (name,), make, needs))
        return make

    return enter


def samples(count: int = 3) -> pa.Table:
    """Returns a table of a few rows."""
    return pa.table({COLUMN: list(range(count)), "name": [f"row {number}" for number in range(count)]})


@kind("Delta", "deltalake")
def delta_tables(folder: Path) -> Iterator[Written]:
    import deltalake

    def rows(path: Path) -> list[int]:
        return [int(one) for one in pa.table(deltalake.DeltaTable(str(path)).to_pyarrow_table())[COLUMN].to_pylist()]

    path = folder / "plain"
    deltalake.write_deltalake(str(path), samples())
    yield Written("plain", path, rows(path))
    path = folder / "overwritten"
    deltalake.write_deltalake(str(path), samples())
    deltalake.write_deltalake(str(path), samples(2), mode="overwrite")
    yield Written("overwritten", path, rows(path))
    path = folder / "rows deleted"
    deltalake.write_deltalake(str(path), samples())
    deltalake.DeltaTable(str(path)).delete(f"{COLUMN} = 1")
    yield Written("rows deleted", path, rows(path))
    path = folder / "partitioned"
    deltalake.write_deltalake(str(path), samples(), partition_by=["name"])
    yield Written("partitioned", path, sorted(rows(path)))


@kind("Iceberg", "pyiceberg", "sqlalchemy")
def iceberg_tables(folder: Path) -> Iterator[Written]:
    from pyiceberg.catalog.sql import SqlCatalog

    place = folder / "warehouse"
    place.mkdir()
    catalog = SqlCatalog("local", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{place}")
    catalog.create_namespace("space")
    table = catalog.create_table("space.samples", schema=samples().schema)
    table.append(samples())
    path = Path(table.location().removeprefix("file://"))
    yield Written("plain", path, [0, 1, 2])
    table.delete(f"{COLUMN} = 1")
    yield Written("rows deleted", path, [0, 2])
    yield Written("its folder of data", path / "data", [0, 2])


@kind("Zarr", "zarr", words=("Zarr", "zarr"))
def zarr_stores(folder: Path) -> Iterator[Written]:
    import zarr

    values = np.arange(60, dtype="f4").reshape(20, 3)
    for version in (2, 3):
        path = folder / f"array-{version}.zarr"
        zarr.create_array(str(path), data=values, chunks=(5, 3), zarr_format=version)
        yield Written(f"an array of version {version}", path, list(values), "data")
        path = folder / f"group-{version}.zarr"
        group = zarr.open_group(str(path), mode="w", zarr_format=version)
        group.create_array(COLUMN, data=values, chunks=(5, 3))
        yield Written(f"a group of version {version}", path, list(values))
    path = folder / "named otherwise"
    zarr.create_array(str(path), data=values, chunks=(5, 3))
    yield Written("an array without the ending", path, list(values), "data")


@kind("MDS", words=("MDS", "MosaicML", "mosaicml"))
def mosaic_shards(folder: Path) -> Iterator[Written]:
    # The library cannot be imported without torchvision. A shard: how many samples, their offsets, their bytes.
    path = folder / "mds"
    path.mkdir()
    rows = [struct.pack("<q", number) for number in range(3)]
    head = 4 + 4 * (len(rows) + 1)
    offsets = [head + 8 * number for number in range(len(rows) + 1)]
    shard = struct.pack("<I4I", len(rows), *offsets) + b"".join(rows)
    (path / "shard.00000.mds").write_bytes(shard)
    about = {
        "column_encodings": ["int"], "column_names": [COLUMN], "column_sizes": [8], "compression": None,
        "format": "mds", "hashes": [], "samples": 3,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
        "size_limit": 1 << 26, "version": 2, "zip_data": None,
    }  # fmt: skip
    (path / "index.json").write_text(json.dumps({"shards": [about], "version": 2}))
    yield Written("plain", path, [0, 1, 2])
    yield Written("its shard", path / "shard.00000.mds", [0, 1, 2])


@kind("LitData", "litdata", words=("LitData", "litdata", "Lightning"))
def litdata_chunks(folder: Path) -> Iterator[Written]:
    from litdata.streaming.writer import BinaryWriter

    path = folder / "litdata"
    path.mkdir()
    writer = BinaryWriter(str(path), chunk_size=2)
    for number in range(4):
        writer[number] = {COLUMN: number}
    writer.done()
    writer.merge()
    yield Written("plain", path, [0, 1, 2, 3])


@kind("TFRecord", "google_crc32c", words=("TFRecord", "tfrecord", "TensorFlow"))
def tfrecords(folder: Path) -> Iterator[Written]:
    import google_crc32c

    def checked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    example = b"\n\x13\n\x11\n\x07" + COLUMN.encode() + b"\x12\x06\x1a\x04\n\x02\x01\x02"
    length = struct.pack("<Q", len(example))
    data = (length + checked(length) + example + checked(example)) * 3
    for name in ("train-00000-of-00001.tfrecord", "train.tfrecord-00000-of-00001"):
        path = folder / f"folder of {name}"
        path.mkdir()
        (path / name).write_bytes(data)
        yield Written(f"a folder, {name}", path, [1, 1, 1])
        yield Written(f"a file, {name}", path / name, [1, 1, 1])


@kind("ArrayRecord", "array_record", words=("ArrayRecord", "arrayrecord", "array_record"))
def array_records(folder: Path) -> Iterator[Written]:
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / "records"
    path.mkdir()
    writer = ArrayRecordWriter(str(path / "train.array_record"), "group_size:1")
    for number in range(3):
        writer.write(b"row %d" % number)
    writer.close()
    yield Written("a folder", path, [b"row 0", b"row 1", b"row 2"], "data")
    yield Written("a file", path / "train.array_record", [b"row 0", b"row 1", b"row 2"], "data")


@kind("Lance", "lance", words=("Lance", "lance"))
def lance_tables(folder: Path) -> Iterator[Written]:
    import lance

    path = folder / "samples.lance"
    lance.write_dataset(samples(), str(path))
    yield Written("plain", path, [0, 1, 2])
    lance.dataset(str(path)).delete(f"{COLUMN} = 1")
    yield Written("rows deleted", path, [0, 2])


@kind("LeRobot", words=("LeRobot", "lerobot"))
def lerobot_folders(folder: Path) -> Iterator[Written]:
    for version in ("v2.1", "v3.0"):
        path = folder / version
        data = path / "data" / "chunk-000"
        video = path / "videos" / "chunk-000" / "observation.images.top"
        for below in (path / "meta", data, video):
            below.mkdir(parents=True)
        about = {
            "codebase_version": version, "robot_type": "so100", "total_episodes": 2, "total_frames": 6, "fps": 30,
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "features": {COLUMN: {"dtype": "int64", "shape": [1]}},
        }  # fmt: skip
        (path / "meta" / "info.json").write_text(json.dumps(about))
        (path / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n')
        for episode in range(2):
            pq.write_table(samples(), data / f"episode_{episode:06d}.parquet")
            (video / f"episode_{episode:06d}.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(100))
        yield Written(version, path, [0, 1, 2, 0, 1, 2])


@kind("COCO", "PIL", words=("COCO", "annotations"))
def coco_folders(folder: Path) -> Iterator[Written]:
    from PIL import Image

    about = {
        "info": {"year": 2024}, "images": [{"id": 0, "file_name": "0.jpg", "width": 4, "height": 4}],
        "annotations": [{"id": 0, "image_id": 0, "category_id": 1, "bbox": [0, 0, 2, 2], "area": 4, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "cat"}],
    }  # fmt: skip
    path = folder / "coco"
    for below in ("images", "annotations"):
        (path / below).mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(path / "images" / "0.jpg")
    (path / "annotations" / "instances_train.json").write_text(json.dumps(about))
    yield Written("images and annotations", path, [np.zeros((4, 4, 3), "u1")], "image")
    yield Written("the annotations", path / "annotations", [0], "id")
    yield Written("the file of annotations", path / "annotations" / "instances_train.json", [0], "id")
    path = folder / "roboflow"
    path.mkdir()
    Image.new("RGB", (4, 4)).save(path / "0.jpg")
    (path / "_annotations.coco.json").write_text(json.dumps(about))
    yield Written("annotations beside the images", path, [np.zeros((4, 4, 3), "u1")], "image")


@kind("safetensors", "safetensors", words=("safetensors",))
def safetensors_files(folder: Path) -> Iterator[Written]:
    import safetensors.numpy
    import safetensors.torch
    import torch

    path = folder / "tensors"
    path.mkdir()
    safetensors.numpy.save_file({COLUMN: np.arange(6, dtype="f4").reshape(3, 2)}, str(path / "model.safetensors"))
    safetensors.torch.save_file({COLUMN: torch.ones(3, dtype=torch.bfloat16)}, str(path / "more.safetensors"))
    yield Written("a file", path / "model.safetensors", list(np.arange(6, dtype="f4").reshape(3, 2)))
    yield Written("a file of bfloat16", path / "more.safetensors", [1.0, 1.0, 1.0])
    yield Written("a folder", path, [])


@kind("AnnData", "anndata", words=("AnnData", "anndata", "Zarr"))
def anndata_files(folder: Path) -> Iterator[Written]:
    import anndata
    import pandas as pd
    import scipy.sparse

    matrix = np.arange(12, dtype="f4").reshape(4, 3)
    cells = pd.DataFrame(
        {COLUMN: pd.Categorical(["a", "b", "a", "b"])}, index=[f"cell {number}" for number in range(4)]
    )
    for name, values in {"dense": matrix, "sparse": scipy.sparse.csr_matrix(matrix)}.items():
        data = anndata.AnnData(X=values, obs=cells)
        path = folder / f"{name}.h5ad"
        data.write_h5ad(path)
        yield Written(f"{name}, .h5ad", path, list(matrix), "X")
    path = folder / "cells.zarr"
    anndata.AnnData(X=matrix, obs=cells).write_zarr(path)
    yield Written("a folder of Zarr", path, list(matrix), "X")
