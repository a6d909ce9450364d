"""LMDB databases and Hugging Face datasets. lmdb and datasets read them back."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.clients.other_tools.arrow_values import DAY, MOMENT, WORDS
from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

PAIRS = {f"{number:03d}".encode(): value for number, value in enumerate([b"", b"a", b"\0\xff" * 5000, pickle.dumps(1)])}


@tool("lmdb", "lmdb", "lmdb")
def lmdb_files(folder: Path) -> Iterator[Written]:
    import lmdb

    options: dict[str, dict[str, Any]] = {
        "a folder": {}, "a file": {"subdir": False}, "no locks": {"lock": False},
        "a map that is written": {"writemap": True},
    }  # fmt: skip
    for kind, given in options.items():
        path = folder / f"{kind}.lmdb"
        with lmdb.open(str(path), map_size=1 << 22, **given) as environment, environment.begin(write=True) as write:
            for key, value in PAIRS.items():
                write.put(key, value)
        yield Written(f"{kind}, values", path, list(PAIRS.values()), "value")
        yield Written(f"{kind}, keys", path, list(PAIRS), "key")

    def database(name: str, **given: Any) -> Path:
        path = folder / name
        with lmdb.open(str(path), map_size=1 << 22, max_dbs=4) as environment:
            inner = environment.open_db(b"samples", **given)
            with environment.begin(write=True) as write:
                for key in PAIRS:
                    write.put(key, key * 2, db=inner)
        return path

    values = [key * 2 for key in PAIRS]
    words = ("samples", "database")
    yield Written("a database within", database("within"), values, "value", words)
    yield Written("several values a key", database("several", dupsort=True), values, "value", words)
    path = folder / "integers"
    with lmdb.open(str(path), map_size=1 << 22, max_dbs=4) as environment:
        inner = environment.open_db(b"samples", integerkey=True)
        with environment.begin(write=True) as write:
            for number in range(3):
                write.put(number.to_bytes(8, "little"), b"a", db=inner)
    yield Written("whole numbers as keys, within", path, [b"a"] * 3, "value", words)
    path = folder / "both"
    with lmdb.open(str(path), map_size=1 << 22, max_dbs=4) as environment:
        inner = environment.open_db(b"samples")
        with environment.begin(write=True) as write:
            write.put(b"000", b"x", db=inner)
            write.put(b"length", b"1")
    yield Written("a database beside keys", path, [b"1", b"x"], "value", words)
    path = folder / "removed"
    with lmdb.open(str(path), map_size=1 << 22) as environment:
        with environment.begin(write=True) as write:
            for number in range(500):
                write.put(b"%04d" % number, b"x" * 100)
        with environment.begin(write=True) as write:
            for number in range(490):
                write.delete(b"%04d" % number)
    yield Written("keys removed", path, [b"x" * 100] * 10, "value")
    path = folder / "empty"
    with lmdb.open(str(path), map_size=1 << 22):
        pass
    yield Written("no keys", path, [], "value")
    path = folder / "copy"
    path.mkdir()
    with lmdb.open(str(folder / "removed"), map_size=1 << 22) as environment:
        environment.copy(str(path), compact=True)
    yield Written("a compact copy", path, [b"x" * 100] * 10, "value")


def features() -> Iterator[tuple[str, Any, list[Any], list[Any]]]:
    """For each feature of datasets: its name, it, the values, and how headrace gives them."""
    import datasets as hf

    for name in ("int8", "int64", "uint16", "float16", "float32", "float64", "bool"):
        values = [1, 0, 1]
        yield name, hf.Value(name), values, [np.dtype(name).type(one) for one in values]
    for name in ("string", "large_string"):
        yield name, hf.Value(name), WORDS, WORDS
    yield "binary", hf.Value("binary"), [b"a", b""], [b"a", b""]
    yield "date32", hf.Value("date32"), [DAY], [np.datetime64(DAY)]
    yield "timestamp", hf.Value("timestamp[us]"), [MOMENT], [MOMENT]
    yield "duration", hf.Value("duration[us]"), [datetime.timedelta(1)], [datetime.timedelta(1)]
    yield "decimal", hf.Value("decimal128(9, 2)"), ["1.10"], [1.1]
    yield "ClassLabel", hf.ClassLabel(names=["cat", "dog"]), [1, 0], [1, 0]
    yield "list", hf.List(hf.Value("int32")), [[1, 2], []], [[1, 2], []]
    yield "list of 2", hf.List(hf.Value("int32"), 2), [[1, 2], [3, 4]], [[1, 2], [3, 4]]
    yield "list of text", hf.List(hf.Value("string")), [["a"], []], [["a"], []]
    yield "list of labels", hf.List(hf.ClassLabel(names=["cat", "dog"])), [[1, 0]], [[1, 0]]
    yield "Array2D", hf.Array2D((2, 2), "float32"), [np.ones((2, 2), "f4")] * 2, [np.ones((2, 2), "f4")] * 2
    yield "Array3D", hf.Array3D((1, 2, 2), "uint8"), [np.ones((1, 2, 2), "u1")], [np.ones((1, 2, 2), "u1")]
    yield "Array2D of any height", hf.Array2D((None, 2), "int64"), [[[1, 2]], [[1, 2], [3, 4]]], [
        np.array([[1, 2]]), np.array([[1, 2], [3, 4]]),
    ]  # fmt: skip
    yield "a dict", {"a": hf.Value("int32")}, [{"a": 1}], [{"a": 1}]
    yield "Translation", hf.Translation(["de", "en"]), [{"de": "a", "en": "b"}], [{"de": "a", "en": "b"}]
    yield "null among text", hf.Value("string"), ["a", None], ["a", None]
    yield "null among numbers", hf.Value("int32"), [1, None], [1, None]
    yield "Json", hf.Value("string"), ['{"a": 1}'], ['{"a": 1}']


@tool("huggingface", "save_to_disk", "datasets")
def saved_datasets(folder: Path) -> Iterator[Written]:
    import datasets as hf
    from PIL import Image

    hf.disable_progress_bars()
    for number, (kind, feature, values, ours) in enumerate(features()):
        path = folder / str(number)
        columns = {COLUMN: values, "row": list(range(len(values)))}
        types = hf.Features({COLUMN: feature, "row": hf.Value("int64")})
        try:
            hf.Dataset.from_dict(columns, features=types).save_to_disk(path)
        except (TypeError, ValueError, NotImplementedError):
            continue
        yield Written(kind, path, ours, unit="D" if kind == "date32" else "us")

    pictures = [Image.fromarray(np.full((4, 6, 3), number, np.uint8)) for number in range(3)]
    types = hf.Features({"image": hf.Image(), "row": hf.Value("int64")})
    path = folder / "images"
    hf.Dataset.from_dict({"image": pictures, "row": [0, 1, 2]}, features=types).save_to_disk(path)
    yield Written("Image", path, [np.asarray(one) for one in pictures], "image")
    path = folder / "images.parquet"
    hf.Dataset.from_dict({"image": pictures, "row": [0, 1, 2]}, features=types).to_parquet(path)
    yield Written("Image in Parquet", path, [np.asarray(one) for one in pictures], "image")

    whole = hf.Dataset.from_dict({COLUMN: list(range(50))})
    for kind, dataset in {
        "several files": whole, "selected": whole.select([5, 3, 9]), "shuffled": whole.shuffle(seed=1),
        "sorted": whole.sort(COLUMN, reverse=True), "filtered": whole.filter(lambda row: row[COLUMN] % 2 == 0),
        "a shard": whole.shard(3, 1), "joined": hf.concatenate_datasets([whole, whole]),
        "no rows": whole.select([]), "with a format": whole.with_format("torch"),
        "renamed": whole.rename_column(COLUMN, "x"),
    }.items():  # fmt: skip
        path = folder / kind
        shards = {"num_shards": 3} if kind == "several files" else {}
        dataset.save_to_disk(path, **shards)
        column = "x" if kind == "renamed" else COLUMN
        values = [int(one) for one in dataset.with_format(None)[column]]
        yield Written(kind, path, values, column, names=("rows",) if kind == "no rows" else ())
    path = folder / "dict"
    hf.DatasetDict({"train": whole, "test": whole.select([1])}).save_to_disk(path)
    yield Written("a DatasetDict", path, list(range(50)), names=("train",))
