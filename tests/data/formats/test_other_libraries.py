"""What we write, NumPy, Arrow, pandas and readers of text read; what they write, we read."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.core.errors import FormatError
from headrace.data.formats.columns import Block
from headrace.data.formats.columns.schema import NUMBERS, Field, Schema
from headrace.data.formats.registry import open_reader
from tests.data.formats.columns import CLASSES, IMAGES, RAW, TOKENS, VALUES, WORDS, block, reopened, rows
from tests.data.formats.samples import (
    IN_TEXT,
    LABELS,
    SHAPES,
    assert_same_numbers,
    block_of,
    halves,
    path_of,
    read,
    usual,
    write,
)
from tests.pairs import in_turn

# -- NumPy -------------------------------------------------------------------------------------------------------------


def test_numpy_maps_each_column_of_a_memmap_folder(tmp_path: Path) -> None:
    path = write("memmap", tmp_path / "data", halves(block(image=IMAGES, tokens=TOKENS, words=WORDS)))
    assert np.array_equal(np.load(path / "image.npy", mmap_mode="r"), IMAGES)
    values, offsets = np.load(path / "tokens.values.npy", mmap_mode="r"), np.load(path / "tokens.offsets.npy")
    assert [values[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [t.tolist() for t in TOKENS]
    text, offsets = np.load(path / "words.utf8.npy"), np.load(path / "words.offsets.npy")
    assert text[offsets[1] : offsets[2]].tobytes().decode() == WORDS[1]


def test_a_folder_of_npy_files_made_with_numpy_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", IMAGES)
    np.save(tmp_path / "value.npy", np.asfortranarray(np.stack([VALUES, VALUES], 1)))
    np.save(tmp_path / "other.npy", VALUES.astype(">f4"))
    data = read(tmp_path)
    assert_same_numbers(data.columns["image"], IMAGES)
    assert_same_numbers(data.columns["value"], np.stack([VALUES, VALUES], 1))
    assert_same_numbers(data.columns["other"], VALUES)
    batch = headrace.open(tmp_path).__getitems__([3, 0])
    assert batch[0]["value"].tolist() == [VALUES[3]] * 2


@pytest.mark.parametrize(("dtype", "shape"), in_turn([*NUMBERS, np.dtype(">i4"), np.dtype(">f8")], SHAPES), ids=str)
def test_npy_files_of_every_type_are_read_and_written(
    dtype: np.dtype[Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    native = dtype.newbyteorder("=")
    data = block_of(Schema((Field("data", "fixed", native, shape),)), 9, 3)
    np.save(tmp_path / "theirs.npy", data.columns["data"].astype(dtype))
    assert_same_numbers(read(tmp_path / "theirs.npy").columns["data"], data.columns["data"])
    ours = write("npy", tmp_path / "ours.npy", halves(data))
    assert_same_numbers(np.load(ours, mmap_mode="r"), data.columns["data"])


def test_a_structured_array_is_one_column_a_field(tmp_path: Path) -> None:
    table = np.zeros(30, [("value", "<f4"), ("image", "u1", (5, 4, 3)), ("big", ">i2")])
    table["value"], table["image"], table["big"] = VALUES, IMAGES, CLASSES
    np.save(tmp_path / "table.npy", table)
    data = read(tmp_path / "table.npy")
    assert data.schema.names == ("value", "image", "big")
    assert_same_numbers(data.columns["image"], IMAGES)
    assert_same_numbers(data.columns["big"], CLASSES.astype(np.int16))
    back = np.load(write("npy", tmp_path / "back.npy", [data]), mmap_mode="r")
    assert np.array_equal(back["image"], IMAGES)
    assert np.array_equal(back["value"], VALUES)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_archives_of_numpy_are_read_and_ours_by_numpy(save: Any, tmp_path: Path) -> None:
    with (tmp_path / "theirs.npz").open("wb") as file:
        save(file, image=IMAGES, value=VALUES, order=np.asfortranarray(IMAGES[..., 0]), big=CLASSES.astype(">i8"))
    data = read(tmp_path / "theirs.npz")
    assert_same_numbers(data.columns["image"], IMAGES)
    assert_same_numbers(data.columns["order"], IMAGES[..., 0])
    assert_same_numbers(data.columns["big"], CLASSES)
    with np.load(write("npz", tmp_path / "ours.npz", halves(data)), allow_pickle=False) as stored:
        assert set(stored.files) == {"image", "value", "order", "big"}
        assert np.array_equal(stored["image"], IMAGES)


# -- Arrow, Parquet, pandas --------------------------------------------------------------------------------------------


def foreign_table() -> pa.Table:
    """Returns a table with many of Arrow's types."""
    return pa.table(
        {
            "value": pa.array(VALUES),
            "flag": pa.array((VALUES > 0).tolist()),
            "word": pa.array(WORDS),
            "large": pa.array(WORDS, pa.large_string()),
            "kind": pa.array([LABELS[number % 3] for number in range(30)]).dictionary_encode(),
            "raw": pa.array(RAW, pa.binary()),
            "even": pa.array([bytes([number] * 4) for number in range(30)], pa.binary(4)),
            "tokens": pa.array([one.tolist() for one in TOKENS], pa.list_(pa.int32())),
            "pair": pa.array([[number, number + 1] for number in range(30)], pa.list_(pa.int16(), 2)),
            "matrix": pa.array(
                [[[number, 0, 1], [2, 3, 4]] for number in range(30)], pa.list_(pa.list_(pa.uint8(), 3), 2)
            ),
            "when": pa.array(range(30), pa.timestamp("us")),
            "day": pa.array(range(30), pa.date32()),
            "price": pa.array([None if number == 3 else float(number) for number in range(30)]),
        }
    )


def check_foreign(data: Block) -> None:
    """Checks what was read of `foreign_table`."""
    assert_same_numbers(data.columns["value"], VALUES)
    assert_same_numbers(data.columns["flag"], VALUES > 0)
    for name in ("word", "large"):
        assert rows(data, name) == WORDS
    assert rows(data, "kind") == [LABELS[number % 3] for number in range(30)]
    assert rows(data, "raw") == RAW
    assert data.columns["even"].tolist() == [[number] * 4 for number in range(30)]
    assert [one.tolist() for one in rows(data, "tokens")] == [one.tolist() for one in TOKENS]
    assert data.columns["pair"].tolist() == [[number, number + 1] for number in range(30)]
    assert data.columns["matrix"].tolist() == [[[number, 0, 1], [2, 3, 4]] for number in range(30)]
    assert data.columns["when"].tolist() == list(range(30))
    assert data.columns["day"].tolist() == list(range(30))
    assert np.flatnonzero(np.isnan(data.columns["price"])).tolist() == [3]


def write_arrow(table: pa.Table, path: Path, form: str) -> None:
    """Writes a table in one of Arrow's forms, in several record batches."""
    if form == "feather":
        pyarrow.feather.write_feather(table, path, compression="lz4", chunksize=7)
    elif form == "parquet":
        pq.write_table(table, path, row_group_size=7)
    else:
        new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            for start in range(0, 30, 7):
                writer.write_table(table.slice(start, 7))


@pytest.mark.parametrize("form", ["file", "stream", "feather", "parquet"])
def test_tables_that_arrow_writes_are_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / ("data.parquet" if form == "parquet" else "data.arrow")
    table = foreign_table().slice(0, 30) if form != "feather" else foreign_table().drop_columns(["matrix"])
    write_arrow(table, path, form)
    data = read(path)
    if form == "feather":
        data = Block(Schema((*data.schema, Field("matrix", "fixed", np.dtype(np.uint8), (2, 3)))), dict(data.columns))
        data.columns["matrix"] = np.array(foreign_table()["matrix"].to_pylist(), np.uint8)  # type: ignore[index]
    check_foreign(data)
    keys = np.array([29, 0, 7, 7, 3])
    fetched = open_reader(path).fetch(keys, ["tokens", "word", "pair"])
    assert [one.tolist() for one in rows(fetched, "tokens")] == [TOKENS[key].tolist() for key in keys]
    assert rows(fetched, "word") == [WORDS[key] for key in keys]


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_arrow_and_pandas_read_what_we_write(format: str, tmp_path: Path) -> None:
    data = block(image=IMAGES, value=VALUES, tokens=TOKENS, words=WORDS, raw=RAW)
    path = write(format, path_of(format, tmp_path), halves(data))
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all() if format == "arrow" else pq.read_table(path)
    table.validate(full=True)
    assert table["words"].to_pylist() == WORDS
    assert table["raw"].to_pylist() == RAW
    assert table["tokens"].to_pylist() == [one.tolist() for one in TOKENS]
    assert np.array_equal(table["image"].combine_chunks().to_numpy_ndarray(), IMAGES)
    pandas = pytest.importorskip("pandas")
    frame = (pandas.read_feather if format == "arrow" else pandas.read_parquet)(path, columns=["value", "words"])
    assert frame["words"].tolist() == WORDS
    assert frame["value"].to_numpy().tolist() == VALUES.tolist()


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_what_pandas_writes_is_read(format: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"value": VALUES, "word": WORDS, "class": CLASSES})
    path = path_of(format, tmp_path)
    (frame.to_parquet if format == "parquet" else frame.to_feather)(path)
    data = read(path)
    assert rows(data, "word") == WORDS
    assert_same_numbers(data.columns["value"], VALUES)


def test_columns_with_holes_are_refused_unless_they_are_numbers_that_can_be_nan(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1, None, 3])}), tmp_path / "holes.parquet")
    with pytest.raises(FormatError, match=r"has holes[\s\S]*place:.*column 'n'[\s\S]*1 empty"):
        read(tmp_path / "holes.parquet")


# -- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", IN_TEXT)
def test_text_of_other_writers_is_read_and_ours_by_other_readers(format: str, tmp_path: Path) -> None:
    delimiter = "\t" if format == "tsv" else ","
    names, path = ["value", "words", "class"], path_of(format, tmp_path)
    columns = [[float(value) for value in VALUES], WORDS, CLASSES.tolist()]
    samples = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    with path.open("w", newline="") as file:
        if format == "jsonl":
            file.writelines(json.dumps(sample) + "\n" for sample in samples)
        else:
            table = csv.DictWriter(file, names, delimiter=delimiter)
            table.writeheader()
            table.writerows(samples)
    data = read(path)
    assert rows(data, "words") == WORDS
    assert data.columns["value"].tolist() == columns[0]
    assert data.columns["class"].tolist() == columns[2]
    (tmp_path / "ours").mkdir()
    ours = write(format, path_of(format, tmp_path / "ours"), halves(data))
    with ours.open(newline="") as file:
        if format == "jsonl":
            back = [json.loads(line) for line in file]
        else:
            back = list(csv.DictReader(file, delimiter=delimiter))
            back = [{**row, "value": float(row["value"]), "class": int(row["class"])} for row in back]
    assert back == samples


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["arrow", "parquet", "hdf5", "npz", "lmdb", "memmap"])
def test_without_the_manifest_the_data_are_the_same(format: str, tmp_path: Path) -> None:
    data = usual(format)
    path = write(format, path_of(format, tmp_path), [data])
    back = reopened(path)
    assert set(back.schema.names) == set(data.schema.names)
    for field in data.schema:
        mine, theirs = rows(data, field.name), rows(back, field.name)
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True)), field
