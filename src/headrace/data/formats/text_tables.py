"""CSV, TSV and JSON lines, read through Arrow. They are parsed whole, once per process: pack what is large.

The formats themselves are in `text_formats.py`.
"""

from __future__ import annotations

import csv
import functools
import json
import mmap
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from headrace.core.errors import FormatError, explain
from headrace.core.shortage import check_shortage
from headrace.data.formats.arrays import unreadable
from headrace.data.formats.arrow_columns import schema_from
from headrace.data.formats.columns import Block
from headrace.data.formats.decoding_whole import decoding_whole
from headrace.data.formats.large_integers import check_csv, check_json
from headrace.data.formats.limits import COLUMNS, DEPTH
from headrace.data.formats.manifest import manifest_of
from headrace.data.formats.protocol import Reader
from headrace.data.formats.schema import Field, Schema
from headrace.data.formats.shards import shards_of
from headrace.data.formats.tables import TableReader

LARGE = 64 << 20
"""Bytes from which on text is worth packing: it takes about a second to parse."""

BLOCK = 16 << 20
"""Bytes that are parsed at a time; no line may be longer."""

LONG_ROW = 10 * DEPTH
"""Bytes of a row of JSON from which on its brackets are counted: shorter ones cannot be too deep for the parser."""

ROW_END = re.compile(rb"\}\r?\n\{")
"""What stands between two rows, and never within one."""

STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
KEY = re.compile(rb'("(?:[^"\\]|\\.)*+")\s*:')

FAILURES = (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError, RecursionError)


def open_table(
    name: str, path: str, suffixes: tuple[str, ...], parse: Callable[[str, Schema | None], pa.Table]
) -> Reader:
    """Opens text of the format `name`; `parse` reads one file, by a schema if that is known."""
    files = shards_of(path, suffixes)
    manifest = manifest_of(path, name)
    size = sum(Path(file).stat().st_size for file in files)
    if size > LARGE:
        warnings.warn(
            f"{path}: {size / 1e6:,.0f} MB of text are parsed by each process that opens them, and kept in its memory; "
            "`headrace pack` makes a form of it that opens at once",
            stacklevel=3,
        )

    if manifest is None:
        known = None
    else:
        known = manifest.schema

    table = _parsed(files, known, parse)
    if known is not None:
        schema = known
    else:
        schema = schema_from(table.schema, path)

    return TableReader(name, path, schema, table.num_rows, _Parsed(files, known, parse, table))


class _Parsed:
    """Parses when it is called; the process that opened the data hands over what it parsed already."""

    def __init__(self, files: list[str], known: Schema | None, parse: Any, table: pa.Table) -> None:
        self._parse = functools.partial(_parsed, files, known, parse)
        self._table: pa.Table | None = table

    def __call__(self) -> pa.Table:
        if self._table is not None:
            return self._table
        return self._parse()

    def __getstate__(self) -> dict[str, Any]:
        return {"_parse": self._parse, "_table": None}


def _parsed(files: list[str], known: Schema | None, parse: Callable[[str, Schema | None], pa.Table]) -> pa.Table:
    tables = []
    sizes = [Path(file).stat().st_size for file in files]
    rows = 0
    what = files[0]
    if len(files) > 1:
        what = f"{files[0]} and {len(files) - 1} more"

    with decoding_whole(what, sum(sizes)) as report:
        for at, file in enumerate(files):
            try:
                tables.append(parse(file, known))
            except FAILURES as error:
                if isinstance(error, FormatError):
                    raise
                raise unreadable(file, "text table", error, "correct the line that the message names") from error

            rows += len(tables[-1])
            report(rows, round(rows * sum(sizes) / max(sum(sizes[: at + 1]), 1)))

    try:
        return pa.concat_tables(tables).combine_chunks()
    except FAILURES as error:
        raise unreadable(files[0], "set of text tables", error, "give all files the same columns") from error


def parse_csv(delimiter: str, file: str, known: Schema | None) -> pa.Table:
    """Reads a file whose first line names the columns."""
    if known is None:
        types = None
    else:
        types = {field.name: _csv_type(field) for field in known}

    if Path(file).stat().st_size == 0:
        raise ValueError("an empty file, without a line of column names")

    with Path(file).open("rb") as stream:
        names = stream.readline(BLOCK).count(delimiter.encode()) + 1

    if names > COLUMNS:
        raise ValueError(f"{names:,} columns, of {COLUMNS:,} at most")

    _check_threads(file)
    read = pyarrow.csv.ReadOptions(block_size=BLOCK, encoding="utf8")
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    table = pyarrow.csv.read_csv(
        file,
        read_options=read,
        parse_options=parse,
        convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=False),
    )
    if known is not None and table.column_names != list(known.names):
        raise ValueError(f"columns {table.column_names} instead of {list(known.names)}")
    if len(set(table.column_names)) != table.num_columns:
        raise ValueError(f"a column name comes twice: {table.column_names}")
    if known is None:
        check_csv(file, table, read, parse)
    return table


def _check_threads(file: str) -> None:
    """Raises `MachineError` where no thread can be started: Arrow's reader of CSV would end the process there."""
    try:
        probe = threading.Thread(target=int)
        probe.start()
    except RuntimeError as error:
        check_shortage(error, file, "reading this text table")
        raise

    probe.join()


def _csv_type(field: Field) -> pa.DataType:
    if field.kind == "text":
        return pa.large_string()
    if field.dtype == np.float16:
        return pa.float32()
    return pa.from_numpy_dtype(field.dtype)


def parse_json(file: str, known: Schema | None) -> pa.Table:
    """Reads a file with one JSON object a line."""
    if Path(file).stat().st_size == 0:
        if known is None:
            raise ValueError("an empty file")
        return pa.schema([(field.name, _json_type(field)) for field in known]).empty_table()

    _check_depth(file)
    options = pyarrow.json.ParseOptions(newlines_in_values=False)
    if known is not None:
        explicit = pa.schema([(field.name, _json_type(field)) for field in known])
        options = pyarrow.json.ParseOptions(explicit_schema=explicit, unexpected_field_behavior="error")

    table = pyarrow.json.read_json(file, pyarrow.json.ReadOptions(block_size=BLOCK), options)
    if known is None:
        check_json(file, table)
    return table


def _check_depth(file: str) -> None:
    """Raises `ValueError` for rows nested so deep that the parser, which calls itself, would end the process."""
    with Path(file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 0
        while start + LONG_ROW < len(data):
            found = max(data.rfind(end, start, start + LONG_ROW) for end in (b"}\n{", b"}\r\n{"))
            if found < start:  # a long row: all others are passed many at a time
                end = ROW_END.search(data, start)
                if end is None:
                    found = len(data)
                else:
                    found = end.start()
                _check_row(data[start : found + 1])

            start = found + 1


def _check_row(row: bytes) -> None:
    plain = np.frombuffer(STRING.sub(b"", row), np.uint8)
    depth = 0
    for start in range(0, len(plain), BLOCK):
        part = plain[start : start + BLOCK]
        brackets = part | 0x20  # [ and ] as { and }
        depths = depth + np.cumsum((brackets == ord("{")).astype(np.int32) - (brackets == ord("}")), dtype=np.int32)
        depth = int(depths[-1])
        if depths.max() > DEPTH:
            raise ValueError(f"a row of {depths.max():,} levels of lists and objects, of {DEPTH:,} at most")

    if row.count(b":") > COLUMNS and (keys := len({one[1] for one in KEY.finditer(row)})) > COLUMNS:
        raise ValueError(f"{keys:,} different keys, of {COLUMNS:,} at most")


def _json_type(field: Field) -> pa.DataType:
    if field.kind == "text":
        return pa.large_string()

    if field.dtype == np.float16:
        element = pa.float32()
    else:
        element = pa.from_numpy_dtype(field.dtype)

    kind = element
    for _ in range(len(field.shape) + (field.kind == "ragged")):
        kind = pa.list_(kind)

    return kind


class CsvFile:
    """A growing file of delimited text."""

    def __init__(self, delimiter: str, path: Path, schema: Schema) -> None:
        self._schema = schema
        self.length = 0
        self._file = path.open("w", encoding="utf-8", newline="")
        self._rows = csv.writer(self._file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
        csv.writer(self._file, delimiter=delimiter, lineterminator="\n").writerow(schema.names)

    def append(self, block: Block) -> None:
        """Adds samples at the end."""
        columns = [_cells(field, block) for field in self._schema]
        self._rows.writerows(zip(*columns, strict=True))
        self.length += len(block)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


def _cells(field: Field, block: Block) -> list[Any]:
    column = block.columns[field.name]
    if field.kind == "text":
        return [_text(field, block, index) for index in range(len(block))]

    values = np.asarray(column)
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values]
    return [repr_of(v) for v in values]


def repr_of(value: Any) -> str:
    """Returns the shortest text that gives a number back."""
    return str(value)


def _text(field: Field, block: Block, index: int) -> str:
    value: str = block.row(index)[field.name]
    try:
        value.encode()
    except UnicodeEncodeError as error:
        place = f"column {field.name!r}"
        raise FormatError(
            explain("text is no UTF-8", place=place, found=repr(value), cure="store it as bytes")
        ) from error

    return value


class JsonFile:
    """A growing file of JSON lines."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self._schema = schema
        self.length = 0
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def append(self, block: Block) -> None:
        """Adds samples at the end. Raises `FormatError` for what JSON has no word for."""
        for field in self._schema:
            column = block.columns[field.name]
            if isinstance(column, np.ndarray):
                values = column
            else:
                values = column.packed()[0]

            if values.dtype.kind == "f" and not np.isfinite(values).all():
                found = "infinite, or not a number"
                raise FormatError(explain("JSON cannot hold this", place=f"column {field.name!r}", found=found))

        for index in range(len(block)):
            row = {name: _plain(value) for name, value in block.row(index).items()}
            for field in self._schema:
                if field.kind == "text":
                    _text(field, block, index)
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

        self.length += len(block)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value


def refusal_of_csv(field: Field) -> str | None:
    """Returns why delimited text cannot hold a field."""
    if field.kind == "text":
        return None
    if field.kind == "fixed" and not field.shape:
        return None
    return "delimited text holds one number or string a cell"


def refusal_of_json(field: Field) -> str | None:
    """Returns why JSON lines cannot hold a field."""
    if field.kind == "bytes":
        return "JSON has no bytes"
    if 0 in field.shape:
        return "lists of a length of 0 have no shape in JSON"
    return None
