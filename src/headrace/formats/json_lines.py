"""JSON lines: one sample a line, as a JSON object."""

from __future__ import annotations

from pathlib import Path

from headrace.formats.arrays import plain_files
from headrace.formats.file_writer import FileWriter
from headrace.formats.protocol import Reader, Writer
from headrace.formats.schema import Field, Schema
from headrace.formats.shards import is_pattern
from headrace.formats.text_tables import JsonFile, open_table, parse_json, refusal_of_json

NAME = "jsonl"
TITLE = "JSON lines"
SUFFIXES = (".jsonl", ".ndjson")


def claims(path: str) -> bool:
    """See `Format.claims`."""
    if Path(path).is_dir():
        return any(name.endswith(SUFFIXES) for name in plain_files(path))
    return path.endswith(SUFFIXES) and (is_pattern(path) or Path(path).is_file())


def refusal(field: Field) -> str | None:
    """See `Format.refusal`."""
    return refusal_of_json(field)


def open_reader(path: str, trust: bool) -> Reader:
    """See `Format.open_reader`."""
    return open_table(NAME, path, SUFFIXES, parse_json)


def open_writer(path: str, schema: Schema) -> Writer:
    """See `Format.open_writer`."""
    return FileWriter(NAME, path, schema, SUFFIXES, JsonFile)
