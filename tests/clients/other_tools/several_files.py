"""Datasets of several files, and files with something beside the column that headrace does not hold.

What several files are together, pyarrow, NumPy, h5py and webdataset say, each file by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.clients.other_tools.arrow_files import of_column, save_ipc
from tests.clients.other_tools.arrow_values import MOMENT, values_of
from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

AT = MOMENT.replace(microsecond=0)


def _tensor(*shape: int) -> pa.Array:
    kind = pa.fixed_shape_tensor(pa.int32(), shape)
    return pa.ExtensionArray.from_storage(kind, pa.array([list(range(6))], pa.list_(pa.int32(), 6)))


def _pairs(length: int) -> pa.Array:
    return pa.array([list(range(length))], pa.list_(pa.int64(), length))


SETS: Mapping[str, Sequence[pa.Array]] = {
    "int32 and int64": [pa.array([1, 2], pa.int32()), pa.array([2**40], pa.int64())],
    "int8 and uint8": [pa.array([-1], pa.int8()), pa.array([255], pa.uint8())],
    "int64 and uint64": [pa.array([-1], pa.int64()), pa.array([2**64 - 1], pa.uint64())],
    "int64 and double": [pa.array([2**53 + 1], pa.int64()), pa.array([0.5])],
    "int32 and double": [pa.array([7], pa.int32()), pa.array([0.5])],
    "int32 and float": [pa.array([2**24 + 1], pa.int32()), pa.array([0.5], pa.float32())],
    "float and double": [pa.array([0.5], pa.float32()), pa.array([0.1])],
    "halffloat and float": [pa.array([np.float16(0.5)]), pa.array([0.1], pa.float32())],
    "bool and int8": [pa.array([True]), pa.array([5], pa.int8())],
    "string and large_string": [pa.array(["a"]), pa.array(["b"], pa.large_string())],
    "string and string_view": [pa.array(["a"]), pa.array(["b"], pa.string_view())],
    "string and binary": [pa.array(["a"]), pa.array([b"\xff"])],
    "string and int64": [pa.array(["a"]), pa.array([1])],
    "string and dictionary": [pa.array(["a"]), pa.array(["b"]).dictionary_encode()],
    "dictionaries of other words": [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()],
    "dictionaries of 2 and 300 words": [
        pa.array(["a", "b"]).cast(pa.dictionary(pa.int8(), pa.string())),
        pa.array([f"w{number}" for number in range(300)]).cast(pa.dictionary(pa.int16(), pa.string())),
    ],
    "list and large_list": [pa.array([[1]], pa.list_(pa.int32())), pa.array([[2, 3]], pa.large_list(pa.int32()))],
    "lists of int32 and int64": [pa.array([[1]], pa.list_(pa.int32())), pa.array([[2**40]], pa.list_(pa.int64()))],
    "list and fixed_size_list": [pa.array([[1]]), _pairs(2)],
    "fixed_size_list of 2 and 3": [_pairs(2), _pairs(3)],
    "timestamp of s and ns": [pa.array([AT], pa.timestamp("s")), pa.array([AT], pa.timestamp("ns"))],
    "a zone and none": [pa.array([AT], pa.timestamp("us")), pa.array([AT], pa.timestamp("us", "UTC"))],
    "timestamp and date32": [pa.array([MOMENT], pa.timestamp("us")), pa.array([MOMENT.date()], pa.date32())],
    "timestamp and int64": [pa.array([MOMENT], pa.timestamp("us")), pa.array([5])],
    "nulls in one": [pa.array([1, 2]), pa.array([None, 3], pa.int64())],
    "null in one": [pa.array([0.5]), pa.nulls(2)],
    "no rows in one": [pa.array([1, 2]), pa.array([], pa.int64())],
    "no rows of null in one": [pa.array([1, 2]), pa.array([], pa.null())],
    "binary of 3 and of 4": [pa.array([b"abc"], pa.binary(3)), pa.array([b"abcd"], pa.binary(4))],
    "tensors of other shapes": [_tensor(2, 3), _tensor(3, 2)],
}  # fmt: skip
"""For each kind, the columns of the files of a folder."""


def _joined(arrays: Sequence[pa.Array]) -> list[Any]:
    """Returns the values of all files. Whole numbers beside fractions are such, too, where a float64 holds them."""
    values = [value for array in arrays for value in values_of(array)]
    if len({array.type for array in arrays}) == 1:
        return values

    plain = [value.item() if isinstance(value, np.number) else value for value in values]
    if any(isinstance(value, float) for value in plain):
        return [float(value) if value == float(value or 0) else value for value in plain]
    return plain


def table_sets(folder: Path, ending: str, save: Callable[[pa.Table, Path], None]) -> Iterator[Written]:
    """Writes a folder of files for each kind, and some whose columns differ in other ways."""
    for kind, arrays in SETS.items():
        path = folder / kind
        path.mkdir()
        for number, array in enumerate(arrays):
            save(of_column(array), path / f"{number}{ending}")
        yield Written(kind, path, _joined(arrays))
    tables = {
        "columns in another order": [pa.table({COLUMN: [1], "x": [2]}), pa.table({"x": [4], COLUMN: [3]})],
        "a column more": [pa.table({COLUMN: [1]}), pa.table({COLUMN: [3], "x": [4]})],
        "a column fewer": [pa.table({COLUMN: [1], "x": [4]}), pa.table({COLUMN: [3]})],
        "not null in one": [
            pa.table([pa.array([1])], schema=pa.schema([pa.field(COLUMN, pa.int64(), nullable=False)])),
            pa.table({COLUMN: [3]}),
        ],
        "other notes": [pa.table({COLUMN: [1]}).replace_schema_metadata({"pandas": "{}"}), pa.table({COLUMN: [3]})],
    }
    for kind, parts in tables.items():
        path = folder / kind
        path.mkdir()
        for number, table in enumerate(parts):
            save(table, path / f"{number}{ending}")
        yield Written(kind, path, [1, 3], names=("'x'", "x "))


@tool("parquet", "pyarrow, several files")
def parquet_sets(folder: Path) -> Iterator[Written]:
    yield from table_sets(folder, ".parquet", pq.write_table)


@tool("arrow", "pyarrow, several files")
def arrow_sets(folder: Path) -> Iterator[Written]:
    yield from table_sets(folder, ".arrow", save_ipc)


@tool("jsonl", "json module, several files")
def json_sets(folder: Path) -> Iterator[Written]:
    sets: Mapping[str, Sequence[Sequence[Any]]] = {
        "whole numbers, then fractions": [[1, 2], [0.5]],
        "numbers, then words": [[1], ["a"]],
        "words, then null": [["a"], [None]],
        "fractions, then null": [[0.5], [None]],
        "lists of whole numbers, then of fractions": [[[1]], [[0.5]]],
        "lists, then an empty one": [[[1]], [[]]],
        "true, then a number": [[True], [1]],
        "dates, then a word": [["2024-02-29"], ["unknown"]],
    }
    for kind, parts in sets.items():
        path = folder / kind
        path.mkdir()
        for number, values in enumerate(parts):
            lines = [json.dumps({COLUMN: value, "row": row}) + "\n" for row, value in enumerate(values)]
            (path / f"{number}.jsonl").write_text("".join(lines))
        joined = [value for values in parts for value in values]
        if "fractions" in kind:
            joined = [_as_float(value) for value in joined]
        yield Written(kind, path, joined)


def _as_float(value: Any) -> Any:
    if isinstance(value, list):
        return [float(one) for one in value]
    return None if value is None else float(value)


@tool("several", "something beside the column", "h5py")
def beside(folder: Path) -> Iterator[Written]:
    import h5py
    import torch

    asked = {"columns": [COLUMN]}
    values = list(np.arange(4))
    odd = {
        "complex numbers": np.ones(4, "c8"), "words": np.array(["a", "b", "c", "d"]), "objects": np.array([{}] * 4),
        "another length": np.arange(3), "a single number": np.array(2.5), "moments": np.array(["2024"] * 4, "M8[D]"),
    }  # fmt: skip
    for kind, array in odd.items():
        path = folder / f"{kind}.npz"
        np.savez(path, **{COLUMN: np.arange(4), "odd": array})
        yield Written(f"npz, {kind}", path, values, options=asked)
        path = folder / f"{kind}, memmap"
        path.mkdir()
        np.save(path / f"{COLUMN}.npy", np.arange(4))
        np.save(path / "odd.npy", array)
        yield Written(f"memmap, {kind}", path, values, options=asked)
        if array.dtype.kind not in "OUM":
            path = folder / f"{kind}.h5"
            with h5py.File(path, "w") as file:
                file[COLUMN] = np.arange(4)
                file["odd"] = array
            yield Written(f"hdf5, {kind}", path, values, options=asked)
    parts: Mapping[str, Any] = {"None": None, "a dict": {"a": 1}, "bfloat16": torch.ones(2).bfloat16(), "a list": ["a"]}
    for kind, part in parts.items():
        path = folder / f"{kind}, pt"
        path.mkdir()
        for number in range(4):
            torch.save({COLUMN: torch.tensor(number), "odd": part}, path / f"{number}.pt")
        yield Written(f"pt, {kind}", path, values, options=asked)
    tables: Mapping[str, pa.Array] = {
        "struct": pa.array([{"a": 1}] * 4), "null": pa.nulls(4), "holes": pa.array([1, None, 2, 3]),
        "interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 4, pa.month_day_nano_interval()),
    }  # fmt: skip
    for kind, array in tables.items():
        for given, options in {"asked for": asked, "not asked for": {}}.items():
            path = folder / f"{kind}, {given}.arrow"
            save_ipc(pa.table({COLUMN: np.arange(4), "odd": array}), path)
            yield Written(f"arrow, {kind}, {given}", path, values, names=("odd",), options=options)
