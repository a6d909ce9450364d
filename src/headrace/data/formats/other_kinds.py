"""Data of kinds that are well known and not read here: they are refused by their names, with what to do.

Read as the files of a folder, or as the one form that some of their files have, they would give bytes for arrays, or
rows that were deleted long ago.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.errors import FormatError
from headrace.storage.files import first_bytes, is_file, is_folder, join, name_of, parent_of, plain_files, read_small


class Kind(NamedTuple):
    """A kind of data."""

    title: str
    fix: str


DELTA = Kind(
    "a Delta table",
    "open the files of its present version: headrace.open(deltalake.DeltaTable(path).file_uris()); "
    "if it has deletion vectors, write its rows again",
)
ICEBERG = Kind(
    "an Iceberg table",
    "open the files of its present snapshot: with pyiceberg, headrace.open([task.file.file_path for task in "
    "table.scan().plan_files()]); if it has delete files, write table.scan().to_arrow() as Parquet",
)
HUDI = Kind("a Hudi table", "write the rows of its present version as Parquet, and open that")
ZARR = Kind("a Zarr store", "read it with zarr, and save its arrays with np.save into a folder, one file each")
MDS = Kind("a folder of MDS shards", "use streaming.StreamingDataset, which headrace.DataLoader takes as it is")
LITDATA = Kind("a folder of LitData chunks", "use litdata.StreamingDataset, which headrace.DataLoader takes as it is")
LANCE = Kind(
    "a Lance dataset", "write it as Parquet: pyarrow.parquet.write_table(lance.dataset(path).to_table(), 'x.parquet')"
)
LEROBOT = Kind(
    "a LeRobot dataset", "use LeRobotDataset of lerobot; or open its table: headrace.open('.../data/chunk-000')"
)
PARTS = Kind("a DatasetDict of Hugging Face", "open one of its parts, a folder in it: 'train', say")
COCO = Kind(
    "a COCO dataset",
    "open the folder of its pictures; for the annotations, write a Dataset that uses pycocotools",
)
TFRECORD = Kind(
    "TFRecord files", "convert them, as with the package tfrecord and webdataset.TarWriter, or read them in a Dataset"
)
ARRAY_RECORD = Kind("ArrayRecord files", "read them with array_record's data source, which headrace.DataLoader takes")
SAFETENSORS = Kind("safetensors files", "load them, and save the arrays with np.savez, or one .pt file per sample")
ANNDATA = Kind(
    "an AnnData file",
    "read it with anndata, and save its matrix with np.save, or open it with columns=['X'] if that is dense",
)
FEATHER = Kind("a Feather file of version 1", "write it again: pyarrow.feather.write_feather(table, path), version 2")
JSON = Kind("JSON that is not in lines", "write one object a line, as by pandas.DataFrame.to_json(lines=True)")
ZIP = Kind("a zip archive", "unpack it, and open the folder")
PACKED_TAR = Kind("a compressed archive", "unpack it, as by gunzip, bunzip2, unxz or unzstd, and open what comes out")
TORCH = Kind("a file of torch.save", "save one file per sample into a folder, or the tensors as arrays: np.savez(...)")
MATLAB = Kind("a MATLAB file", "read it with scipy.io.loadmat or h5py, and save the arrays with np.savez")

BY_ENDING = {
    ".mds": MDS,
    ".lance": LANCE,
    ".tfrecord": TFRECORD,
    ".tfrecords": TFRECORD,
    ".array_record": ARRAY_RECORD,
    ".arrayrecord": ARRAY_RECORD,
    ".safetensors": SAFETENSORS,
    ".h5ad": ANNDATA,
    ".zarr": ZARR,
    ".json": JSON,
    ".zip": ZIP,
    ".gz": PACKED_TAR,
    ".tgz": PACKED_TAR,
    ".bz2": PACKED_TAR,
    ".xz": PACKED_TAR,
    ".zst": PACKED_TAR,
    ".pt": TORCH,
    ".pth": TORCH,
    ".mat": MATLAB,
}
"""By the last ending of a file's name."""

COCO_KEYS = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
"""What COCO's annotations begin with."""

BY_BEGINNING = {
    b"FEA1": FEATHER,
    b"PK\x03\x04": ZIP,
    b"\x1f\x8b": PACKED_TAR,
    b"BZh": PACKED_TAR,
    b"\xfd7zXZ": PACKED_TAR,
    b"\x28\xb5\x2f\xfd": PACKED_TAR,
}


def kind_of_file(path: str) -> Kind | None:
    """Returns which kind of data a file is, that no form here reads; None if it is none that is known."""
    name = name_of(path).lower()
    if ".tfrecord" in name:
        return TFRECORD

    if name.endswith(".json") and COCO_KEYS.search(first_bytes(path, 4096)):
        return COCO

    # torch writes a zip, which its ending tells apart.
    found = BY_ENDING.get("." + name.rpartition(".")[2])
    if found is not None:
        return found

    head = first_bytes(path, 16)
    for beginning, kind in BY_BEGINNING.items():
        if head.startswith(beginning):
            return kind

    return None


def kind_of_folder(path: str, names: Sequence[str]) -> Kind | None:
    """Returns which kind of data a folder is, by what lies in it; None if it is none that is known.

    names: of the files in it.
    """
    for is_kind, kind in FOLDERS:
        if is_kind(path, names):
            return kind

    return None


def kind_with_versions(folder: str) -> Kind | None:
    """Returns which kind of table a folder is whose files hold rows of older versions, too; None if it is none."""
    for is_kind, kind in FOLDERS:
        if kind in (DELTA, ICEBERG, HUDI) and is_kind(folder, ()):
            return kind

    return None


def refusal_of_kind(place: str, kind: Kind) -> FormatError:
    """Returns the error for data of a kind that is not read."""
    what = "data of this kind are not read"
    fix = f"{kind.fix}; to open the files as they are, name the format: open(..., format=...)"
    return FormatError.about(what, place=place, found=kind.title, expected="a format of docs/howto/formats.md", fix=fix)


def is_iceberg(path: str) -> bool:
    """Tells whether a folder is an Iceberg table."""
    return any(name.endswith(".metadata.json") for name in plain_files(join(path, "metadata")))


def _has_folder(name: str) -> Callable[[str, Sequence[str]], bool]:
    return lambda path, names: is_folder(join(path, name))


def _has_file(*files: str) -> Callable[[str, Sequence[str]], bool]:
    return lambda path, names: any(is_file(join(path, name)) for name in files)


def _index_says(word: str) -> Callable[[str, Sequence[str]], bool]:
    def says(path: str, names: Sequence[str]) -> bool:
        if "index.json" not in names:
            return False
        try:
            index = json.loads(read_small(join(path, "index.json")))
        except (OSError, ValueError, RecursionError, FormatError):
            return False
        return isinstance(index, dict) and word in index

    return says


FOLDERS: tuple[tuple[Callable[[str, Sequence[str]], bool], Kind], ...] = (
    (_has_folder("_delta_log"), DELTA),
    (lambda path, names: is_iceberg(path) or (name_of(path) == "data" and is_iceberg(parent_of(path))), ICEBERG),
    (_has_folder(".hoodie"), HUDI),
    (_has_file("zarr.json", ".zarray", ".zgroup"), ZARR),
    (_index_says("shards"), MDS),
    (_index_says("chunks"), LITDATA),
    (_has_folder("_versions"), LANCE),
    (_has_file("meta/info.json"), LEROBOT),
    (_has_file("dataset_dict.json"), PARTS),
    (lambda path, names: any(n.endswith(".json") for n in plain_files(join(path, "annotations"))), COCO),
)
"""Folders, each told by what its kind has and no other."""
