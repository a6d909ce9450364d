"""Arrow tables drawn at random: types within types, cut out of longer arrays, in chunks and row groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.clients.other_tools.arrow_files import (
    UNWRITABLE,
    of_column,
    read_arrow,
    read_parquet,
    save_ipc,
    save_stream,
    written,
)
from tests.clients.other_tools.comparison import Written
from tests.clients.other_tools.tools import tool

TABLES = 60
ELEMENTS = (
    pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(),
    pa.large_string(), pa.string_view(), pa.binary(), pa.binary(3), pa.date32(), pa.timestamp("ms"),
    pa.decimal128(9, 2),
)  # fmt: skip


def numbers_of(kind: pa.DataType, count: int, rng: np.random.Generator) -> pa.Array:
    """Returns random values of a type that holds no others."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.array(["ü" * int(rng.integers(20)) for _ in range(count)], kind)
    if pa.types.is_binary(kind):
        return pa.array([rng.bytes(int(rng.integers(20))) for _ in range(count)], kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([rng.bytes(3) for _ in range(count)], kind)
    whole = pa.array(rng.integers(0, 100, count))
    if pa.types.is_boolean(kind):
        return pa.array(rng.integers(0, 2, count) > 0)
    if pa.types.is_decimal(kind):
        return pa.array([f"{value}.25" for value in whole.to_pylist()]).cast(kind)
    if pa.types.is_date(kind):
        return whole.cast(pa.int32()).cast(kind)
    return whole.cast(kind)


def random_array(count: int, depth: int, rng: np.random.Generator) -> pa.Array:
    """Returns an array of random values, of a random type, cut out of a longer one."""
    before, behind = rng.integers(0, 5, 2).tolist()
    total = before + count + behind
    layout = str(rng.choice(["plain", "plain", "list", "large", "fixed", "dictionary"]))
    if depth == 0 or layout == "plain":
        array = numbers_of(ELEMENTS[int(rng.integers(len(ELEMENTS)))], total, rng)
    elif layout == "fixed":
        array = pa.FixedSizeListArray.from_arrays(random_array(total * 3, depth - 1, rng), 3)
    elif layout == "dictionary":
        words = numbers_of(ELEMENTS[int(rng.choice([2, 5, 7, 8]))], 7, rng).unique()
        array = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, len(words), total), pa.int16()), words)
    else:
        offsets = np.cumsum([0, *rng.integers(0, 4, total)])
        inner = random_array(int(offsets[-1]), depth - 1, rng)
        if layout == "list":
            array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner)
        else:
            array = pa.LargeListArray.from_arrays(pa.array(offsets), inner)
    return array.slice(before, count)


def random_tables() -> Iterator[tuple[str, pa.Table]]:
    """Returns tables of one random column, in random chunks, each with its type."""
    for seed in range(TABLES):
        rng = np.random.default_rng(seed)
        array = random_array(int(rng.integers(1, 40)), 2, rng)
        cuts = sorted({0, len(array), *rng.integers(0, len(array) + 1, 2).tolist()})
        chunks = [array.slice(start, stop - start) for start, stop in itertools.pairwise(cuts)]
        yield f"{seed}: {array.type}", of_column(pa.chunked_array(chunks, array.type))


@tool("arrow", "pyarrow, at random")
def random_arrow(folder: Path) -> Iterator[Written]:
    for number, (kind, table) in enumerate(random_tables()):
        path = folder / f"{number}.arrow"
        save_ipc(table, path, rows=7)
        yield written(kind, path, read_arrow(path))
        path = folder / f"{number}.arrows"
        save_stream(table, path)
        yield written(f"{kind}, stream", path, read_arrow(path))


@tool("parquet", "pyarrow, at random")
def random_parquet(folder: Path) -> Iterator[Written]:
    for number, (kind, table) in enumerate(random_tables()):
        path = folder / f"{number}.parquet"
        try:
            pq.write_table(table, path, row_group_size=7, data_page_size=64, use_dictionary=number % 2 == 0)
            found = read_parquet(path)
        except UNWRITABLE:
            continue
        yield written(kind, path, found)
