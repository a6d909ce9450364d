"""Arrow and Parquet files of polars, pandas, fastparquet and duckdb. pyarrow reads them back."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.clients.other_tools.arrow_files import read_arrow, read_parquet, written
from tests.clients.other_tools.arrow_values import DAY, MOMENT, WORDS
from tests.clients.other_tools.comparison import COLUMN, Written
from tests.clients.other_tools.tools import tool

Read = Callable[[Path], pa.ChunkedArray]

DELTA = datetime.timedelta(days=1, microseconds=5)


def polars_columns() -> Iterator[tuple[str, Any]]:
    """A series of each type that polars has."""
    import polars as pl

    for name in ("Int8", "Int16", "Int32", "Int64", "Int128", "UInt8", "UInt16", "UInt32", "UInt64"):
        yield name, pl.Series(COLUMN, [0, 1, 127], getattr(pl, name))
    for name in ("Float32", "Float64"):
        yield name, pl.Series(COLUMN, [0.1, float("nan"), float("inf")], getattr(pl, name))
        yield f"{name} and null", pl.Series(COLUMN, [0.5, None], getattr(pl, name))
    yield "Int64 and null", pl.Series(COLUMN, [1, None])
    yield "Boolean", pl.Series(COLUMN, [True, False])
    yield "Boolean and null", pl.Series(COLUMN, [True, None])
    yield "String", pl.Series(COLUMN, WORDS)
    yield "String and null", pl.Series(COLUMN, ["a", None])
    yield "Binary", pl.Series(COLUMN, [b"\0a", b""])
    yield "Categorical", pl.Series(COLUMN, ["cat", "dog", "cat"], pl.Categorical)
    yield "Categorical of long words", pl.Series(COLUMN, ["a word of more than twelve bytes", "dog"], pl.Categorical)
    yield "Categorical and null", pl.Series(COLUMN, ["cat", None], pl.Categorical)
    yield "Enum", pl.Series(COLUMN, ["cat", "dog"], pl.Enum(["dog", "cat"]))
    yield "Date", pl.Series(COLUMN, [DAY])
    yield "Time", pl.Series(COLUMN, [datetime.time(10, 30, 1)])
    for unit in ("ms", "us", "ns"):
        yield f"Datetime {unit}", pl.Series(COLUMN, [MOMENT], pl.Datetime(unit))
        yield f"Datetime {unit} of a zone", pl.Series(COLUMN, [MOMENT], pl.Datetime(unit, "Europe/Berlin"))
        yield f"Duration {unit}", pl.Series(COLUMN, [DELTA], pl.Duration(unit))
    yield "Decimal", pl.Series(COLUMN, [Decimal("1.10")], pl.Decimal(10, 2))
    yield "Decimal of 30 digits", pl.Series(COLUMN, [Decimal(10**29 + 1)], pl.Decimal(38, 0))
    yield "List", pl.Series(COLUMN, [[1, 2], []], pl.List(pl.Int32))
    yield "List and null", pl.Series(COLUMN, [[1, 2], None], pl.List(pl.Int32))
    yield "List of String", pl.Series(COLUMN, [["a"], []], pl.List(pl.String))
    yield "Array", pl.Series(COLUMN, [[1.0, 2.0]], pl.Array(pl.Float32, 2))
    yield "Array of Array", pl.Series(COLUMN, [[[1, 2], [3, 4]]], pl.Array(pl.Int64, (2, 2)))
    yield "Struct", pl.Series(COLUMN, [{"a": 1, "b": "x"}])
    yield "Null", pl.Series(COLUMN, [None, None])
    yield "chunks", pl.concat([pl.Series(COLUMN, [1]), pl.Series(COLUMN, [2, 3])], rechunk=False)


def of_series(kind: str, path: Path, series: Any, read: Read) -> Written:
    """Returns a case of polars. pyarrow cannot read all of its types."""
    try:
        return written(kind, path, read(path))
    except pa.ArrowNotImplementedError:
        return Written(kind, path, series.to_list(), names=(str(series.dtype), "128", "more than 64 bits"))


@tool("arrow", "polars", "polars")
def polars_ipc(folder: Path) -> Iterator[Written]:
    for number, (kind, series) in enumerate(polars_columns()):
        for codec in ("uncompressed", "zstd"):
            path = folder / f"{number}-{codec}.arrow"
            series.to_frame().write_ipc(path, compression=codec)
            yield of_series(f"{kind}, {codec}", path, series, read_arrow)
        path = folder / f"{number}-oldest.arrow"
        series.to_frame().write_ipc(path, compat_level=_oldest())
        yield of_series(f"{kind}, oldest", path, series, read_arrow)


def _oldest() -> Any:
    import polars as pl

    return pl.CompatLevel.oldest()


@tool("arrow", "polars stream", "polars")
def polars_stream(folder: Path) -> Iterator[Written]:
    for number, (kind, series) in enumerate(polars_columns()):
        path = folder / f"{number}.arrows"
        series.to_frame().write_ipc_stream(path)
        yield of_series(kind, path, series, read_arrow)


@tool("parquet", "polars", "polars")
def polars_parquet(folder: Path) -> Iterator[Written]:
    for number, (kind, series) in enumerate(polars_columns()):
        path = folder / f"{number}.parquet"
        series.to_frame().write_parquet(path)
        yield of_series(kind, path, series, read_parquet)


def pandas_columns() -> Iterator[tuple[str, Any]]:
    """A series of each type that pandas has."""
    import pandas as pd

    for name in ("int8", "uint64", "float32", "float64", "bool"):
        yield name, pd.Series([0, 1, 1], dtype=name)
    for name in ("Int64", "UInt8", "Float32", "boolean"):
        yield f"nullable {name}", pd.Series([1, 0], dtype=name)
        yield f"nullable {name} and NA", pd.Series([1, None], dtype=name)
    yield "object of str", pd.Series(WORDS, dtype=object)
    yield "object of str and None", pd.Series(["a", None], dtype=object)
    yield "object of bytes", pd.Series([b"a", b"\0"], dtype=object)
    yield "object of lists", pd.Series([[1, 2], [3]])
    yield "object of arrays", pd.Series([np.arange(3.0), np.arange(1.0)])
    yield "object of dicts", pd.Series([{"a": 1}, {"a": 2}])
    yield "object of Decimal", pd.Series([Decimal("1.10")])
    yield "object of dates", pd.Series([DAY])
    yield "string", pd.Series(WORDS, dtype="string")
    yield "string of pyarrow", pd.Series(WORDS, dtype="string[pyarrow]")
    yield "category", pd.Series(["cat", "dog", "cat"], dtype="category")
    yield "category and NaN", pd.Series(["cat", None], dtype="category")
    yield "category of int", pd.Series([30, 10, 30], dtype="category")
    yield "datetime64", pd.Series([pd.Timestamp(MOMENT), pd.Timestamp(MOMENT)])
    yield "datetime64 of a zone", pd.Series([pd.Timestamp(MOMENT, tz="Europe/Berlin")])
    yield "datetime64 and NaT", pd.Series([pd.Timestamp(MOMENT), pd.NaT])
    yield "timedelta64", pd.Series([pd.Timedelta(DELTA)])
    yield "period", pd.Series(pd.period_range("2024-01", periods=2, freq="M"))
    yield "interval", pd.Series(pd.interval_range(0, 2))
    yield "sparse", pd.Series([0, 0, 1], dtype=pd.SparseDtype("int64", 0))


def frames() -> Iterator[tuple[str, Any]]:
    """Frames of one column, with each kind of index."""
    import pandas as pd

    for kind, series in pandas_columns():
        yield kind, series.to_frame(COLUMN)
    yield "an index of text", pd.DataFrame({COLUMN: [1, 2]}, index=["a", "b"])
    yield "a named index", pd.DataFrame({COLUMN: [1, 2]}, index=pd.Index([7, 8], name="number"))
    yield "an index with gaps", pd.DataFrame({COLUMN: [1, 2, 3]})[::2]
    index = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])
    yield "an index of two", pd.DataFrame({COLUMN: [1, 2]}, index=index)


@tool("parquet", "pandas", "pandas")
def pandas_parquet(folder: Path) -> Iterator[Written]:
    for number, (kind, frame) in enumerate(frames()):
        path = folder / f"{number}.parquet"
        try:
            frame.to_parquet(path, engine="pyarrow")
        except (TypeError, ValueError, NotImplementedError):
            continue
        yield written(kind, path, read_parquet(path))


@tool("arrow", "pandas feather", "pandas")
def pandas_feather(folder: Path) -> Iterator[Written]:
    for number, (kind, frame) in enumerate(frames()):
        path = folder / f"{number}.feather"
        try:
            frame.to_feather(path)
        except (TypeError, ValueError, NotImplementedError):
            continue
        yield written(kind, path, read_arrow(path))


@tool("parquet", "fastparquet", "pandas", "fastparquet")
def fastparquet_files(folder: Path) -> Iterator[Written]:
    for number, (kind, frame) in enumerate(frames()):
        for times in ("int64", "int96"):
            path = folder / f"{number}-{times}.parquet"
            try:
                frame.to_parquet(path, engine="fastparquet", times=times)
                found = read_parquet(path)
            except Exception:  # noqa: BLE001 - what this library cannot write is none of our business
                continue
            yield written(f"{kind}, times {times}", path, found)


DUCKDB: Mapping[str, str] = {
    "TINYINT": "1::TINYINT", "SMALLINT": "1::SMALLINT", "INTEGER": "1::INTEGER", "BIGINT": "2**40::BIGINT",
    "UTINYINT": "255::UTINYINT", "UBIGINT": "18446744073709551615::UBIGINT", "HUGEINT": "170::HUGEINT",
    "FLOAT": "0.5::FLOAT", "DOUBLE": "0.1::DOUBLE", "BOOLEAN": "true", "VARCHAR": "'Grüße'", "BLOB": "'a'::BLOB",
    "DATE": "DATE '2024-02-29'", "TIME": "TIME '10:30:01'", "TIMESTAMP": "TIMESTAMP '2024-02-29 10:00:00.5'",
    "TIMESTAMP_S": "TIMESTAMP_S '2024-02-29 10:00:00'", "TIMESTAMP_MS": "TIMESTAMP_MS '2024-02-29 10:00:00.5'",
    "TIMESTAMP_NS": "TIMESTAMP_NS '2024-02-29 10:00:00.5'", "INTERVAL": "INTERVAL 3 DAY",
    "DECIMAL(9,2)": "1.10::DECIMAL(9,2)", "DECIMAL(38,0)": "12345678901234567890123456789::DECIMAL(38,0)",
    "UUID": "'12345678-1234-1234-1234-123456789abc'::UUID", "BIT": "'101'::BIT", "INTEGER[]": "[1, 2]",
    "VARCHAR[]": "['a', 'b']", "INTEGER[2]": "[1, 2]::INTEGER[2]", "STRUCT": "{'a': 1}", "MAP": "MAP {'a': 1}",
    "ENUM": "'cat'::ENUM('cat', 'dog')", "JSON": "'{\"a\": 1}'::JSON", "NULL": "NULL",
    "BIGINT and NULL": "CASE WHEN i = 1 THEN NULL ELSE i END",
    "DOUBLE and NULL": "CASE WHEN i = 1 THEN NULL ELSE i / 2 END",
}  # fmt: skip


@tool("parquet", "duckdb", "duckdb")
def duckdb_parquet(folder: Path) -> Iterator[Written]:
    import duckdb

    with duckdb.connect() as connection:
        for number, (kind, value) in enumerate(DUCKDB.items()):
            for version in ("V1", "V2"):
                path = folder / f"{number}-{version}.parquet"
                select = f"SELECT {value} AS {COLUMN} FROM range(3) numbers(i)"
                try:
                    connection.execute(f"COPY ({select}) TO '{path}' (FORMAT parquet, PARQUET_VERSION {version})")
                except duckdb.Error:
                    continue
                yield written(f"{kind}, {version}", path, read_parquet(path))
