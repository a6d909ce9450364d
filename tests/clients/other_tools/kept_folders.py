"""Folders and archives as people keep them: packed, split, partitioned, or with something else beside the samples."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.foreign_folders import kind, samples


@kind("zip", words=("zip",))
def zips(folder: Path) -> Iterator[Written]:
    path = folder / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/0.jpg", b"x")
        archive.writestr("dog/1.jpg", b"y")
    yield Written("photos", path, [b"x", b"y"], "data")


@kind("forms in sub-folders", words=("train",))
def splits(folder: Path) -> Iterator[Written]:
    def write_parquet(path: Path) -> None:
        pq.write_table(samples(), path / "0.parquet")

    def write_tar(path: Path) -> None:
        import io
        import tarfile

        with tarfile.open(path / "0.tar", "w") as archive:
            info = tarfile.TarInfo("0.txt")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"a"))

    def write_npy(path: Path) -> None:
        np.save(path / f"{COLUMN}.npy", np.arange(3))

    def write_csv(path: Path) -> None:
        (path / "0.csv").write_text(f"{COLUMN}\n0\n1\n2\n")

    def write_pt(path: Path) -> None:
        import torch

        torch.save({COLUMN: torch.ones(2)}, path / "0.pt")

    for write in (write_parquet, write_tar, write_npy, write_csv, write_pt):
        path = folder / write.__name__
        for part in ("train", "test"):
            (path / part).mkdir(parents=True)
            write(path / part)
        yield Written(write.__name__.replace("write_", ""), path, [])


@kind("Hive", words=("label=", "partition", "Hive", "hive"))
def hive_folders(folder: Path) -> Iterator[Written]:
    import pyarrow.dataset

    path = folder / "hive"
    table = pa.table({COLUMN: [0, 1, 2], "label": ["cat", "dog", "cat"]})
    pyarrow.dataset.write_dataset(table, path, format="parquet", partitioning=["label"], partitioning_flavor="hive")
    yield Written("partitions", path, [0, 2, 1])


@kind("files of arrays, one a sample", "h5py", words=(".npz", ".h5", ".npy", ".arrow", ".safetensors"))
def sample_files(folder: Path) -> Iterator[Written]:
    import h5py

    for ending in ("npz", "h5", "npy"):
        path = folder / ending
        path.mkdir()
        for number in range(4):
            if ending == "npz":
                np.savez(path / f"{number}.npz", **{COLUMN: np.full(3, number)})
            elif ending == "npy":
                np.save(path / f"{number}.npy", np.full(3, number))
            else:
                with h5py.File(path / f"{number}.h5", "w") as file:
                    file[COLUMN] = np.full(3, number)
        values = [np.full(3, number) for number in range(4)]
        yield Written(ending, path, values)


@kind("photos with one stray file", "PIL", words=("labels.csv", "metadata.jsonl", "features.npy", "README.md"))
def stray_files(folder: Path) -> Iterator[Written]:
    from PIL import Image

    strays: dict[str, bytes] = {
        "labels.csv": b"file,label\n0.png,1\n", "metadata.jsonl": b'{"file_name": "0.png"}\n', "README.md": b"photos",
        "Thumbs.db": b"\xd0\xcf\x11\xe0", "desktop.ini": b"[x]",
    }  # fmt: skip
    pixels = [np.full((4, 4, 3), number, "u1") for number in range(6)]
    for name, data in strays.items():
        for classes in (False, True):
            path = folder / f"{name}-{classes}"
            for number, one in enumerate(pixels):
                below = path / ("cat", "dog")[number // 3] if classes else path
                below.mkdir(parents=True, exist_ok=True)
                Image.fromarray(one).save(below / f"{number}.png")
            (path / name).write_bytes(data)
            yield Written(f"{name}, classes {classes}", path, pixels, "image")
            if classes:
                yield Written(f"{name}, labels", path, [0, 0, 0, 1, 1, 1], "label")


@kind("files of two forms", words=("odd.",))
def mixed_forms(folder: Path) -> Iterator[Written]:
    def write_parquet(path: Path) -> None:
        pq.write_table(samples(), path.with_suffix(".parquet"))

    def write_csv(path: Path) -> None:
        path.with_suffix(".csv").write_text(f"{COLUMN},name\n0,row 0\n1,row 1\n2,row 2\n")

    def write_json(path: Path) -> None:
        path.with_suffix(".jsonl").write_text(f'{{"{COLUMN}": 0, "name": "row 0"}}\n')

    def write_arrow(path: Path) -> None:
        with pa.ipc.new_file(str(path.with_suffix(".arrow")), samples().schema) as writer:
            writer.write_table(samples())

    def write_packed_tar(path: Path) -> None:
        import tarfile

        with tarfile.open(path.with_suffix(".tar.gz"), "w:gz") as archive:
            archive.addfile(tarfile.TarInfo("0.txt"))

    def write_tar(path: Path) -> None:
        import tarfile

        with tarfile.open(path.with_suffix(".tar"), "w") as archive:
            archive.addfile(tarfile.TarInfo("0.txt"))

    def write_photo(path: Path) -> None:
        path.with_suffix(".jpg").write_bytes(b"\xff\xd8\xff")

    pairs = (
        (write_parquet, write_csv), (write_csv, write_parquet), (write_csv, write_json), (write_arrow, write_parquet),
        (write_tar, write_packed_tar), (write_tar, write_parquet), (write_parquet, write_photo),
    )  # fmt: skip
    for most, odd in pairs:
        path = folder / f"{most.__name__} {odd.__name__}".replace("write_", "")
        path.mkdir()
        for number in range(5):
            most(path / f"{number}")
        odd(path / "odd")
        yield Written(path.name, path, [])
