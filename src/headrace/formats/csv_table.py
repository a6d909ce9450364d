"""CSV: one sample a line, the first line names the columns."""

from __future__ import annotations

import functools
from pathlib import Path

from headrace.formats.arrays import plain_files
from headrace.formats.file_writer import FileWriter
from headrace.formats.protocol import Reader, Writer
from headrace.formats.schema import Field, Schema
from headrace.formats.shards import is_pattern
from headrace.formats.text_tables import CsvFile, open_table, parse_csv, refusal_of_csv

NAME = "csv"
TITLE = "CSV text"
SUFFIXES = (".csv",)
DELIMITER = ","


def claims(path: str) -> bool:
    """See `Format.claims`."""
    if Path(path).is_dir():
        return any(name.endswith(SUFFIXES) for name in plain_files(path))
    return path.endswith(SUFFIXES) and (is_pattern(path) or Path(path).is_file())


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    return refusal_of_csv(field)


def open_reader(path: str, trust: bool) -> Reader:
    """See `Format.open_reader`."""
    return open_table(NAME, path, SUFFIXES, functools.partial(parse_csv, DELIMITER))


def write_file(path: Path, schema: Schema) -> CsvFile:
    """Begins one file."""
    return CsvFile(DELIMITER, path, schema)


def open_writer(path: str, schema: Schema) -> Writer:
    """See `Format.open_writer`."""
    return FileWriter(NAME, path, schema, SUFFIXES, write_file)
