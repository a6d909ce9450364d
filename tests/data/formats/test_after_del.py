"""What a dataset holds goes with it, without Python's cyclic collector: descriptors, mappings, decoded columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.data.formats.columns import Block
from headrace.data.formats.columns.schema import Field, Schema
from tests.belongings import open_files, own_memory
from tests.data.formats.samples import FORMATS, path_of, usual, write

MANY = 1000


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def mapped_files(folder: Path) -> list[str]:
    """Returns the files below a folder that this process has mapped."""
    names = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        names += line.split(None, 5)[5:]

    return [name for name in names if name.startswith(f"{folder}/")]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.quick
@pytest.mark.parametrize("format", FORMATS)
def test_no_file_stays_open_behind_a_dataset(format: str, tmp_path: Path) -> None:
    path = write(format, path_of(format, tmp_path), [usual(format)])
    dataset = headrace.open(path)
    assert len(dataset.__getitems__([3, 1])) == 2
    stream = iter(dataset.stream())
    assert next(stream)
    loader = headrace.DataLoader(dataset, 4)
    assert len(list(loader)) == 5
    del dataset, stream, loader
    assert open_files(tmp_path) == []
    assert mapped_files(tmp_path) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("format", ["parquet", "hdf5", "npz", "lmdb", "webdataset", "jsonl", "arrow"])
def test_a_thousand_datasets_take_no_more_than_one(format: str, tmp_path: Path) -> None:
    schema = Schema((Field("x", "fixed", np.dtype(np.float64), ()),))
    numbers = np.random.default_rng(0).random(20_000 if format != "webdataset" else 200)
    path = write(format, path_of(format, tmp_path), [Block(schema, {"x": numbers})])

    def open_and_drop(count: int) -> None:
        for _ in range(count):
            batch = next(iter(headrace.DataLoader(headrace.open(path), 8)))
            assert batch["x"].tolist() == numbers[:8].tolist()

    open_and_drop(20)
    memory = own_memory()
    open_and_drop(MANY)
    # A column is 160 kB, and would be 160 MB if each stayed.
    assert open_files(tmp_path) == []
    assert own_memory() < memory + (20 << 20)
