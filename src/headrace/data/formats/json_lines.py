"""JSON lines: one sample a line, an object whose keys name the columns."""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json

from headrace.core.errors import FormatError
from headrace.data.formats.arrow.exact_numbers import is_time
from headrace.data.formats.columns.block import Block
from headrace.data.formats.columns.large_integers import check_json
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.text_tables import BLOCK, WIDE_MARKS, TextFormat, text_at, with_names
from headrace.data.formats.guards.limits import COLUMNS, DEPTH

LONG_ROW = 10 * DEPTH
"""Bytes of a row of JSON from which on its brackets are counted: shorter ones cannot be too deep for the parser."""

ROW_END = re.compile(rb"\}\r?\n\{")
"""What stands between two rows, and never within one."""

# The last `+` is possessive: a string that does not end is given up at once, instead of tried from each of its bytes.
STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
KEY = re.compile(rb'("(?:[^"\\]|\\.)*+")\s*:')


def _parse(file: str, known: Schema | None) -> pa.Table:
    """Reads a file with one JSON object a line."""
    if Path(file).stat().st_size == 0:
        if known is None:
            raise ValueError("an empty file")
        return _arrow_schema(known).empty_table()

    with Path(file).open("rb") as stream:
        head = stream.read(64)
    if head.startswith(WIDE_MARKS) or b"\0" in head:
        raise _in_another_encoding(file, "text in UTF-16")

    _check_depth(file)
    options = pyarrow.json.ParseOptions(newlines_in_values=False)
    if known is not None:
        options = pyarrow.json.ParseOptions(explicit_schema=_arrow_schema(known), unexpected_field_behavior="error")

    read = pyarrow.json.ReadOptions(block_size=BLOCK)
    table = pyarrow.json.read_json(file, read, options)
    if known is not None:
        return table

    # Arrow makes a number of a text that looks like a time, in a unit that depends on the other rows.
    as_text = pa.schema([pa.field(field.name, _without_times(field.type)) for field in table.schema])
    if as_text != table.schema:
        table = pyarrow.json.read_json(file, read, pyarrow.json.ParseOptions(explicit_schema=as_text))

    _check_utf8(file, table)
    check_json(file, table)
    return table.rename_columns(with_names(table.column_names))


def _check_utf8(file: str, table: pa.Table) -> None:
    """Raises `FormatError` for text in another encoding, which Arrow takes as it is."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise _in_another_encoding(f"{file}, column {name!r}", str(error)) from error


def _in_another_encoding(place: str, found: str) -> FormatError:
    fix = "write it in UTF-8, as by iconv -f LATIN1 -t UTF-8"
    return FormatError.about("this text is in another encoding", place=place, found=found, expected="UTF-8", fix=fix)


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Returns a type with text in the place of times."""
    if is_time(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _without_times(part.type)) for part in kind])
    return kind


def _arrow_schema(schema: Schema) -> pa.Schema:
    """Returns how Arrow's parser of JSON is told the types of columns."""
    fields = []
    for field in schema:
        fields.append(pa.field(field.name, _json_type(field)))

    return pa.schema(fields)


def _check_depth(file: str) -> None:
    """Raises `ValueError` for rows nested so deep that the parser, which calls itself, would end the process."""
    with Path(file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = 0
        while start + LONG_ROW < len(data):
            stop = start + LONG_ROW
            found = max(data.rfind(b"}\n{", start, stop), data.rfind(b"}\r\n{", start, stop))
            # Rows that end within so many bytes are too short to be deep, and are passed many at a time.
            if found < start:
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
        # The bit 0x20 turns [ into { and ] into }.
        part = plain[start : start + BLOCK]
        brackets = part | 0x20
        depths = depth + np.cumsum((brackets == ord("{")).astype(np.int32) - (brackets == ord("}")), dtype=np.int32)
        depth = int(depths[-1])
        if depths.max() > DEPTH:
            raise ValueError(f"a row of {depths.max():,} levels of lists and objects, of {DEPTH:,} at most")

    # Each key has a colon behind it: counting colons is quick, and tells that nearly no row need be searched.
    if row.count(b":") > COLUMNS:
        keys = {match[1] for match in KEY.finditer(row)}
        if len(keys) > COLUMNS:
            raise ValueError(f"{len(keys):,} different keys, of {COLUMNS:,} at most")


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
                raise FormatError.about("JSON cannot hold this", place=f"column {field.name!r}", found=found)

        for index in range(len(block)):
            row = {}
            for name, value in block.row(index).items():
                row[name] = _plain(value)

            for field in self._schema:
                if field.kind == "text":
                    text_at(field, block, index)

            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

        self.length += len(block)

    def close(self) -> None:
        """Completes the file."""
        self._file.close()


def _plain(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return value


def _refusal(field: Field) -> str | None:
    """Returns why JSON lines cannot hold a field."""
    if field.kind == "bytes":
        return "JSON has no bytes"
    if 0 in field.shape:
        return "lists of a length of 0 have no shape in JSON"
    return None


JSON_LINES = TextFormat("jsonl", "JSON lines", (".jsonl", ".ndjson"), _parse, JsonFile, _refusal)
