"""Arrow IPC and Parquet files of pyarrow: every type, codec, encoding and layout. pyarrow reads them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from tests.clients.other_tools import arrow_values
from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

Save = Callable[[pa.Table, Path], None]

UNWRITABLE = (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError, OSError)
"""What pyarrow raises for types that a form has no word for, or writes in a way that it cannot read back."""

CODECS = ("NONE", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD")
ENCODINGS = {
    "PLAIN": pa.array(np.arange(500, dtype=np.int32)),
    "DELTA_BINARY_PACKED": pa.array(np.arange(500, dtype=np.int64) ** 2),
    "BYTE_STREAM_SPLIT": pa.array(np.linspace(0, 1, 500)),
    "DELTA_LENGTH_BYTE_ARRAY": pa.array([f"word {number}" for number in range(500)]),
    "DELTA_BYTE_ARRAY": pa.array([f"word {number}" for number in range(500)]),
}


def of_column(array: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Returns a table of a column, and another one that is read in any case."""
    return pa.table({COLUMN: array, "row": pa.array(np.arange(len(array)))})


def read_arrow(path: Path) -> pa.ChunkedArray:
    """Returns the column of an Arrow file or stream, as pyarrow reads it."""
    with path.open("rb") as file:
        if file.read(6) == b"ARROW1":
            return pa.ipc.open_file(path).read_all()[COLUMN]
    with pa.OSFile(str(path)) as stream:
        return pa.ipc.open_stream(stream).read_all()[COLUMN]


def read_parquet(path: Path) -> pa.ChunkedArray:
    """Returns the column of a Parquet file, as pyarrow reads it."""
    return pq.ParquetFile(path).read()[COLUMN]


def written(kind: str, path: Path, array: pa.ChunkedArray) -> Written:
    """Returns what pyarrow has read as a case."""
    names = (str(array.type), str(array.type).split("[")[0])
    return Written(kind, path, arrow_values.values_of(array), names=names, unit=arrow_values.unit_of(array.type))


def each(
    folder: Path,
    ending: str,
    arrays: Iterator[tuple[str, pa.Array]],
    save: Save,
    read: Callable[[Path], pa.ChunkedArray],
) -> Iterator[Written]:
    """Writes a file for each array, without those that the form has no word for."""
    for number, (kind, array) in enumerate(arrays):
        path = folder / f"{number:03d}{ending}"
        try:
            save(of_column(array), path)
            found = read(path)
        except UNWRITABLE:
            continue
        yield written(kind, path, found)


def save_ipc(table: pa.Table, path: Path, options: Any = None, rows: int = 2) -> None:
    """Writes an IPC file in record batches of a few rows."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)


def save_stream(table: pa.Table, path: Path, options: Any = None) -> None:
    """Writes an IPC stream in record batches of a few rows."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)


@tool("arrow", "pyarrow file")
def arrow_files(folder: Path) -> Iterator[Written]:
    arrays = (pair for group in (arrow_values.all_types, arrow_values.unions) for pair in group())
    yield from each(folder, ".arrow", arrays, save_ipc, read_arrow)


@tool("arrow", "pyarrow stream")
def arrow_streams(folder: Path) -> Iterator[Written]:
    yield from each(folder, ".arrows", arrow_values.all_types(), save_stream, read_arrow)


@tool("arrow", "pyarrow layouts")
def arrow_layouts(folder: Path) -> Iterator[Written]:
    some = {
        "numbers": pa.array(np.arange(500, dtype=np.int32)),
        "bool": pa.array([True, False, True] * 100),
        "string": pa.array([f"word {number}" for number in range(500)]),
        "list": pa.array([[number] * (number % 4) for number in range(500)]),
        "dictionary": pa.array(["cat", "dog"] * 100).dictionary_encode(),
    }
    for name, array in some.items():
        for codec in ("lz4", "zstd"):
            path = folder / f"{name}-{codec}.arrow"
            save_ipc(of_column(array), path, pa.ipc.IpcWriteOptions(compression=codec), rows=300)
            yield written(f"{name}, {codec}", path, read_arrow(path))
        path = folder / f"{name}-v4.arrow"
        save_ipc(of_column(array), path, pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4), rows=300)
        yield written(f"{name}, metadata V4", path, read_arrow(path))
        path = folder / f"{name}-legacy.arrows"
        save_stream(of_column(array[:20]), path, pa.ipc.IpcWriteOptions(use_legacy_format=True))
        yield written(f"{name}, legacy stream", path, read_arrow(path))
        path = folder / f"{name}.feather"
        pyarrow.feather.write_feather(of_column(array), path, chunksize=90)
        yield written(f"{name}, feather", path, read_arrow(path))

    chunks = pa.chunked_array([["a", "b"], ["b", "c"], ["d"]]).dictionary_encode()
    for deltas in (False, True):
        path = folder / f"growing-{deltas}.arrows"
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas, unify_dictionaries=False)
        parts = [["a", "b"], ["a", "b", "c"], ["x"]]
        batches = [pa.record_batch([pa.array(part).dictionary_encode()], [COLUMN]) for part in parts]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        yield written(f"dictionary that grows, deltas {deltas}", path, read_arrow(path))
    path = folder / "unified.feather"
    pyarrow.feather.write_feather(of_column(chunks), path)
    yield written("dictionary of chunks, feather", path, read_arrow(path))

    path = folder / "old.feather"
    pyarrow.feather.write_feather(pa.table({COLUMN: [1, 2, 3]}), path, version=1)
    yield Written("feather of version 1", path, [1, 2, 3], names=("eather", "FEA1"))
    path = folder / "empty.arrow"
    save_ipc(of_column(pa.array([], pa.int32())), path)
    yield written("no rows", path, read_arrow(path))
    path = folder / "big.arrow"
    save_ipc(of_column(pa.array([1, 2, 3], pa.int32())), path)
    yield written("one row in a batch", path, read_arrow(path))
    table = of_column(pa.array([1, 2]))
    path = folder / "twice.arrow"
    save_ipc(pa.table([table[COLUMN], pa.array([3, 4])], names=[COLUMN, COLUMN]), path)
    yield Written("a name twice", path, [[1, 2], [3, 4]])


def save_parquet(**options: Any) -> Save:
    """Returns what writes Parquet with some options."""
    return lambda table, path: pq.write_table(table, path, **options)


@tool("parquet", "pyarrow")
def parquet_files(folder: Path) -> Iterator[Written]:
    yield from each(folder, ".parquet", arrow_values.all_types(), save_parquet(row_group_size=2), read_parquet)


@tool("parquet", "pyarrow, without Arrow's schema")
def plain_parquet_files(folder: Path) -> Iterator[Written]:
    save = save_parquet(store_schema=False, version="1.0", data_page_version="1.0")
    yield from each(folder, ".parquet", arrow_values.all_types(), save, read_parquet)


@tool("parquet", "pyarrow layouts")
def parquet_layouts(folder: Path) -> Iterator[Written]:
    some: Mapping[str, pa.Array] = {
        "int64": pa.array(np.arange(600) % 7),
        "float32": pa.array(np.linspace(0, 1, 600, dtype=np.float32)),
        "bool": pa.array([True, False, False, True] * 150),
        "string": pa.array([f"word {number % 50}" for number in range(600)]),
        "list": pa.array([[number] * (number % 3) for number in range(600)]),
    }
    for name, array in some.items():
        for codec in CODECS:
            for version in ("1.0", "2.0"):
                path = folder / f"{name}-{codec}-{version}.parquet"
                pq.write_table(
                    of_column(array), path, compression=codec, data_page_version=version, data_page_size=512,
                    row_group_size=250, write_page_index=True, write_page_checksum=True,
                )  # fmt: skip
                yield written(f"{name}, {codec}, pages {version}", path, read_parquet(path))
    for encoding, array in ENCODINGS.items():
        path = folder / f"{encoding}.parquet"
        kinds = {COLUMN: encoding}
        pq.write_table(of_column(array), path, use_dictionary=False, column_encoding=kinds, data_page_size=512)
        yield written(encoding, path, read_parquet(path))
    for name in ("int32", "float16", "float32", "int64"):
        path = folder / f"split-{name}.parquet"
        array = pa.array(np.arange(100, dtype=name))
        if name == "float16":
            array = array.cast(pa.float32())
        pq.write_table(of_column(array), path, use_dictionary=False, use_byte_stream_split=True)
        yield written(f"byte stream split of {name}", path, read_parquet(path))

    moments = pa.array([arrow_values.MOMENT, arrow_values.OLD], pa.timestamp("ns"))
    path = folder / "int96.parquet"
    pq.write_table(of_column(moments), path, use_deprecated_int96_timestamps=True)
    yield written("timestamps of 96 bits", path, read_parquet(path))
    path = folder / "rounded.parquet"
    pq.write_table(of_column(moments), path, coerce_timestamps="ms")
    yield written("timestamps made milliseconds", path, read_parquet(path))
    path = folder / "empty.parquet"
    pq.write_table(of_column(pa.array([], pa.int32())), path)
    yield written("no rows", path, read_parquet(path))
    path = folder / "legacy.parquet"
    pq.write_table(of_column(pa.array([[1, 2], []])), path, use_compliant_nested_type=False)
    yield written("list named item", path, read_parquet(path))
    required = pa.schema([pa.field(COLUMN, pa.int64(), nullable=False)])
    path = folder / "required.parquet"
    pq.write_table(pa.table([pa.array([1, 2])], schema=required), path)
    yield written("not null", path, read_parquet(path))
    path = folder / "decimal.parquet"
    cents = pa.array(["1.25", "99.99"]).cast(pa.decimal128(5, 2))
    pq.write_table(of_column(cents), path, store_decimal_as_integer=True)
    yield written("decimal stored as an integer", path, read_parquet(path))
    path = folder / "twice.parquet"
    pq.write_table(pa.table([[1, 2], [3, 4]], names=[COLUMN, COLUMN]), path)
    yield Written("a name twice", path, [[1, 2], [3, 4]])
