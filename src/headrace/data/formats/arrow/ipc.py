"""Arrow IPC, the file and the stream form, memory-mapped: one file, or a folder or pattern of shards.

In a store, the samples that are needed are read; see `ipc_ranges.py`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.ipc

from headrace.core.errors import FormatError
from headrace.data.formats.arrow.columns import to_batch
from headrace.data.formats.arrow.field_types import arrow_schema
from headrace.data.formats.arrow.file_sets import joined_schema, joined_tables, wanted_of
from headrace.data.formats.arrow.ipc_ranges import open_table, read_table
from headrace.data.formats.columns import Block, concatenated
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.tables import TableReader
from headrace.data.formats.growing_file import GrowingFileWriter
from headrace.data.formats.guards.arrow_messages import check_compressed
from headrace.data.formats.guards.limits import FREE, allowed, stored_size, too_large
from headrace.data.formats.manifest import files_ending_in, manifest_of
from headrace.data.formats.other_kinds import FEATHER, refusal_of_kind
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.shards import is_pattern, shards_of
from headrace.data.formats.unreadable import unreadable
from headrace.storage.files import first_bytes, is_file, is_folder, join
from headrace.storage.locations import is_url

NAME = "arrow"
TITLE = "Arrow IPC files, memory-mapped"
SUFFIXES = (".arrow", ".feather", ".ipc", ".arrows")
GROUP = 1 << 28
"""Bytes of a record batch that the writer makes: as few as possible, since each costs a step in every gather."""


def claims(path: str) -> bool:
    if is_folder(path):
        # Such a file makes it a dataset of Hugging Face, whose Arrow files lie in the folder too.
        return bool(files_ending_in(path, SUFFIXES)) and not is_file(join(path, "state.json"))
    return first_bytes(path, 6) == b"ARROW1" or (path.endswith(SUFFIXES) and (is_pattern(path) or is_file(path)))


def refusal(field: Field) -> str | None:
    if field.kind != "fixed" and field.dtype.kind == "b":
        return "Arrow packs booleans of lists in bits"
    if field.dtype.kind == "b" and field.shape:
        return "Arrow has no tensors of booleans"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    files = shards_of(path, SUFFIXES)
    manifest_of(path, NAME)
    return open_files(files, path, trust, columns)


def open_files(files: Sequence[str], path: str, trust: bool, columns: Names | None = None) -> Reader:
    if first_bytes(files[0], 4) == b"FEA1":
        raise refusal_of_kind(files[0], FEATHER)
    if is_url(files[0]):
        return open_table(NAME, path, read_table(files), trust)

    schema, table = _joined(files, path, trust, columns)
    if table.num_rows > FREE and table.num_rows > allowed(stored_size(files)):
        raise too_large(path, f"{table.num_rows:,} samples", f"{allowed(stored_size(files)):,} at most")

    return TableReader(NAME, path, schema, table.num_rows, functools.partial(load, files, schema, trust), trust)


def _joined(files: Sequence[str], path: str, trust: bool, columns: Names | None) -> tuple[Schema, pa.Table]:
    tables = [_table(file, trust) for file in files]
    schemas = [table.schema for table in tables]
    schema = joined_schema(schemas, files, path, wanted_of(schemas[0], columns))
    return schema, joined_tables(tables, schema, files)


def load(files: Sequence[str], schema: Schema, trust: bool = False) -> pa.Table:
    """Returns a table over the files, mapped into memory. Raises `FormatError` if one is damaged."""
    return joined_tables([_table(file, trust) for file in files], schema, files)


def _table(file: str, trust: bool) -> pa.Table:
    try:
        if Path(file).stat().st_size == 0:
            raise pa.ArrowInvalid("an empty file")
        check_compressed(file, trust)
        source = pa.memory_map(file)
        is_file = first_bytes(file, 6) == b"ARROW1"
        if is_file:
            open_ipc = pa.ipc.open_file
        else:
            open_ipc = pa.ipc.open_stream

        # `read_all` maps, and believes all offsets. Damaged ones would be followed out of the mapping.
        table = open_ipc(source).read_all()
        table.validate()
    except (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError, struct.error) as error:
        if isinstance(error, FormatError):
            raise
        raise unreadable(file, "Arrow file", error) from error
    except OSError as error:
        if error.filename is None and not isinstance(error, PermissionError):
            raise unreadable(file, "Arrow file", error) from error
        raise

    return table


class Sink(Protocol):
    """A file that takes record batches."""

    def write(self, batch: pa.RecordBatch, /) -> None:
        """Adds a batch at the end."""

    def close(self) -> None:
        """Completes the file."""


class BatchWriter:
    """Writes blocks as record batches of about `GROUP` bytes, through anything that has `write` and `close`."""

    def __init__(self, schema: Schema, sink: Sink) -> None:
        self._schema = schema
        self._sink = sink
        self._arrow = arrow_schema(schema)
        self._waiting: list[Block] = []
        self._bytes = 0
        self.length = 0

    def append(self, block: Block) -> None:
        """Adds samples at the end."""
        if len(block) == 0:
            return

        # Measured as Arrow will write them: booleans, say, take an eighth of their bytes here.
        self._waiting.append(block)
        self._bytes += to_batch(block, self._arrow).nbytes
        self.length += len(block)
        if self._bytes >= GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._sink.write(to_batch(concatenated(self._schema, self._waiting), self._arrow))
        self._waiting = []
        self._bytes = 0

    def close(self) -> None:
        """Writes what is left, and the end of the file."""
        self._flush()
        self._sink.close()


def write_file(path: str | Path, schema: Schema) -> BatchWriter:
    """Begins one Arrow file."""
    return BatchWriter(schema, pa.ipc.new_file(str(path), arrow_schema(schema)))


def open_writer(path: str, schema: Schema) -> Writer:
    return GrowingFileWriter(NAME, path, schema, SUFFIXES, write_file)
