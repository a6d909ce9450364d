"""Tables of text, read through Arrow: parsed whole, once per process. Pack what is large.

`csv_files.py` and `json_lines.py` have the formats themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.errors import FormatError, warn
from headrace.data.formats.arrow.file_sets import joined_schema, joined_tables, wanted_of
from headrace.data.formats.columns.block import Block
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.tables import TableReader
from headrace.data.formats.decoding_whole import decoding_whole
from headrace.data.formats.growing_file import GrowingFile, GrowingFileWriter
from headrace.data.formats.guards.limits import stored_size
from headrace.data.formats.manifest import files_ending_in, known_schema, manifest_of
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.shards import is_pattern, shards_of
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import is_file, is_folder

LARGE = 64 << 20
"""Bytes from which on text is worth packing: it takes about a second to parse."""

BLOCK = 16 << 20
"""Bytes that are parsed at a time; no line may be longer."""

WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""How text in UTF-16 begins."""

Parse = Callable[[str, Schema | None], pa.Table]
"""Reads a file, by a schema if that is known."""

FAILURES = (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError, RecursionError)


@dataclass(frozen=True)
class TextFormat:
    """A `Format` of text. `parse` reads a file, by a schema if that is known; `write_file` begins one."""

    NAME: str
    TITLE: str
    SUFFIXES: tuple[str, ...]
    parse: Parse
    write_file: Callable[[Path, Schema], GrowingFile]
    refusal: Callable[[Field], str | None]

    def claims(self, path: str) -> bool:
        if is_folder(path):
            return bool(files_ending_in(path, self.SUFFIXES))
        return path.endswith(self.SUFFIXES) and (is_pattern(path) or is_file(path))

    def open_reader(self, path: str, trust: bool, columns: Names | None = None) -> Reader:
        files = shards_of(path, self.SUFFIXES)
        return _open_table(self.NAME, path, files, known_schema(manifest_of(path, self.NAME)), self.parse, columns)

    def open_files(self, files: Sequence[str], place: str, trust: bool, columns: Names | None = None) -> Reader:
        return _open_table(self.NAME, place, files, None, self.parse, columns)

    def open_writer(self, path: str, schema: Schema) -> Writer:
        return GrowingFileWriter(self.NAME, path, schema, self.SUFFIXES, self.write_file)


def _open_table(
    name: str, path: str, files: Sequence[str], known: Schema | None, parse: Parse, columns: Names | None
) -> Reader:
    size = stored_size(files)
    if size > LARGE:
        warn(
            f"{path}: {size / 1e6:,.0f} MB of text are parsed by each process that opens them, and kept in its memory; "
            "`headrace pack` converts it to a format that opens at once"
        )

    schema, table = _parsed(files, path, known, parse, columns)
    return TableReader(name, path, schema, table.num_rows, _KeptTable(files, path, known, parse, columns, table))


class _KeptTable:
    """Parses when it is called; the process that opened the data hands over what it parsed already."""

    def __init__(
        self,
        files: Sequence[str],
        path: str,
        known: Schema | None,
        parse: Parse,
        columns: Names | None,
        table: pa.Table,
    ) -> None:
        self._parse = functools.partial(_parsed, files, path, known, parse, columns)
        self._table: pa.Table | None = table

    def __call__(self) -> pa.Table:
        if self._table is not None:
            return self._table
        return self._parse()[1]

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned parses for itself: the table, as a pickle, would be larger than the text.
        return {"_parse": self._parse, "_table": None}


def _parsed(
    files: Sequence[str], path: str, known: Schema | None, parse: Parse, columns: Names | None
) -> tuple[Schema, pa.Table]:
    """Returns the rows of files, and their columns: `known` if they are."""
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
                fix = "correct the file: what was found says where"
                raise unreadable(file, "text table", error, fix) from error

            # How many samples there are is known at the end only; until then, as many as these bytes make likely.
            rows += len(tables[-1])
            report(rows, round(rows * sum(sizes) / max(sum(sizes[: at + 1]), 1)))

    try:
        if known is None:
            tables = _of_common_numbers(tables, files)
            schemas = [table.schema for table in tables]
            known = joined_schema(schemas, files, path, wanted_of(schemas[0], columns))
            return known, joined_tables(tables, known, files).combine_chunks()
        return known, pa.concat_tables(tables).combine_chunks()
    except FAILURES as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(files[0], "set of text tables", error, "give all files the same columns") from error


def _of_common_numbers(tables: Sequence[pa.Table], files: Sequence[str]) -> list[pa.Table]:
    """Returns tables whose numbers are floating point where those of one of them are, as in one file of all rows.

    A column without a value in a table has the type of the others there.
    """
    kinds: dict[str, set[pa.DataType]] = {}
    for table in tables:
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(field.type)

    wide = {}
    for name, found in kinds.items():
        some = found - {pa.null()}
        if some == {pa.int64(), pa.float64()}:
            wide[name] = pa.float64()
        elif len(some) == 1 and len(found) > 1:
            wide[name] = some.pop()

    changed = []
    for name_of_file, table in zip(files, tables, strict=True):
        for number, field in enumerate(table.schema):
            if field.name in wide and field.type != wide[field.name]:
                # Arrow refuses whole numbers that floating point does not hold.
                try:
                    column = table.column(number).cast(wide[field.name])
                except pa.ArrowInvalid as error:
                    place = f"{name_of_file}, column {field.name!r}"
                    fix = "write its numbers with a decimal point if they may be rounded, or as text in all files"
                    expected = "numbers that floating point holds, as other files have fractions there"
                    what = "a whole number is too large"
                    raise FormatError.about(what, place=place, found=str(error), expected=expected, fix=fix) from error
                table = table.set_column(number, field.name, column)
        changed.append(table)

    return changed


def text_at(field: Field, block: Block, index: int) -> str:
    """Returns the text of a sample. Raises `FormatError` if it is not valid UTF-8."""
    value: str = block.row(index)[field.name]
    try:
        value.encode()
    except UnicodeEncodeError as error:
        place = f"column {field.name!r}"
        raise FormatError.about("text is no UTF-8", place=place, found=repr(value), fix="store it as bytes") from error

    return value


def with_names(names: Sequence[str]) -> list[str]:
    """Returns the names of columns, as pandas calls those that have none; it writes its index without a name."""
    return [name or f"Unnamed: {number}" for number, name in enumerate(names)]
