"""CSV, TSV and JSON lines: one sample a line. In CSV and TSV the first line names the columns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.data.formats.arrays import plain_files
from headrace.data.formats.file_writer import FileWriter, Growing
from headrace.data.formats.protocol import Reader, Writer
from headrace.data.formats.schema import Field, Schema
from headrace.data.formats.shards import is_pattern
from headrace.data.formats.text_tables import (
    CsvFile,
    JsonFile,
    open_table,
    parse_csv,
    parse_json,
    refusal_of_csv,
    refusal_of_json,
)


@dataclass(frozen=True)
class TextFormat:
    """One of the formats; see `Format`. `parse` reads a file, by a schema if that is known; `write_file` begins one."""

    NAME: str
    TITLE: str
    SUFFIXES: tuple[str, ...]
    parse: Callable[[str, Schema | None], pa.Table]
    write_file: Callable[[Path, Schema], Growing]
    refusal: Callable[[Field], str | None]

    def claims(self, path: str) -> bool:
        """See `Format.claims`."""
        if Path(path).is_dir():
            return any(name.endswith(self.SUFFIXES) for name in plain_files(path))
        return path.endswith(self.SUFFIXES) and (is_pattern(path) or Path(path).is_file())

    def open_reader(self, path: str, trust: bool) -> Reader:
        """See `Format.open_reader`."""
        return open_table(self.NAME, path, self.SUFFIXES, self.parse)

    def open_writer(self, path: str, schema: Schema) -> Writer:
        """See `Format.open_writer`."""
        return FileWriter(self.NAME, path, schema, self.SUFFIXES, self.write_file)


def _delimited(name: str, title: str, delimiter: str) -> TextFormat:
    parse = functools.partial(parse_csv, delimiter)
    write = functools.partial(CsvFile, delimiter)
    return TextFormat(name, title, (f".{name}",), parse, write, refusal_of_csv)


CSV = _delimited("csv", "CSV text", ",")
TSV = _delimited("tsv", "TSV text", "\t")
JSON_LINES = TextFormat("jsonl", "JSON lines", (".jsonl", ".ndjson"), parse_json, JsonFile, refusal_of_json)
