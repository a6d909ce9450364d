"""Parquet: one file, or a folder or pattern of them. Only the columns asked for are read, row group by row group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.errors import HeadraceError
from headrace.data.formats.arrow.columns import check_decoded, from_arrow
from headrace.data.formats.arrow.field_types import arrow_schema
from headrace.data.formats.arrow.file_sets import joined_schema, wanted_of
from headrace.data.formats.arrow.ipc import BatchWriter
from headrace.data.formats.arrow.parquet_files import FAILURES, LocalParquetFiles, ParquetFiles, RemoteParquetFiles
from headrace.data.formats.columns import Column, Keys, joined
from headrace.data.formats.columns.grouping import grouped
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.columns.tables import BlockReader
from headrace.data.formats.decoding_whole import decoding_whole
from headrace.data.formats.growing_file import GrowingFileWriter
from headrace.data.formats.guards.limits import allowed, check_unfolding
from headrace.data.formats.guards.parquet_pages import Pages, Pread, leaves_of, look_at
from headrace.data.formats.manifest import files_ending_in, manifest_of
from headrace.data.formats.protocol import Names, Reader, Writer
from headrace.data.formats.shards import is_pattern, shards_of
from headrace.data.formats.unreadable import unreadable
from headrace.storage.fetching.ranges import ByteRange
from headrace.storage.files import first_bytes, is_file, is_folder
from headrace.storage.locations import is_url

NAME = "parquet"
TITLE = "Parquet files"
SUFFIXES = (".parquet", ".pq")
ROWS = 1 << 17
"""Rows of a group that the writer makes, at most."""

KEEP = 2 << 30
"""Bytes of decoded columns that a process keeps, at most a quarter of the machine's memory."""

AT_ONCE = 64 << 20
"""Bytes that are read at a time where a few stored ones could unfold to very long strings."""


def claims(path: str) -> bool:
    if is_folder(path):
        return bool(files_ending_in(path, SUFFIXES))
    return first_bytes(path, 4) == b"PAR1" or (path.endswith(SUFFIXES) and (is_pattern(path) or is_file(path)))


def refusal(field: Field) -> str | None:
    if field.shape and field.kind == "ragged":
        return "Parquet has no lists of arrays"
    if field.dtype.kind == "b" and (field.kind != "fixed" or field.shape):
        return "Parquet packs booleans in bits"
    if 0 in field.shape:
        return "Parquet has no empty arrays"
    return None


def open_reader(path: str, trust: bool, columns: Names | None = None) -> Reader:
    names = shards_of(path, SUFFIXES)
    manifest_of(path, NAME)
    return open_files(names, path, trust, columns)


def open_files(names: Sequence[str], path: str, trust: bool, columns: Names | None = None) -> Reader:
    files: ParquetFiles
    if is_url(names[0]):
        files = RemoteParquetFiles(names)
    else:
        files = LocalParquetFiles(names)

    schema = joined_schema(list(map(files.schema, range(len(names)))), names, path, wanted_of(files.schema(0), columns))
    groups = []
    lengths = []
    for number in range(len(names)):
        metadata = files.metadata(number)
        for group in range(metadata.num_row_groups):
            groups.append((number, group))
            lengths.append(metadata.row_group(group).num_rows)

    if isinstance(files, LocalParquetFiles):
        files.close()
    return ParquetReader(path, files, schema, groups, lengths, trust)


class ParquetReader(BlockReader):
    """Decoded columns are kept by row group; if all of a column fits, it is put together, and then lies in memory."""

    format = NAME

    def __init__(
        self,
        path: str,
        files: ParquetFiles,
        schema: Schema,
        groups: list[tuple[int, int]],
        lengths: Sequence[int],
        trust: bool = False,
    ) -> None:
        from headrace.core.process.memory import machine_memory

        super().__init__(path, schema, lengths, min(KEEP, machine_memory() // 4))
        self._files = files
        self._groups = groups
        self._trust = trust
        self._whole: dict[str, Column] = {}
        self._leaves: dict[int, dict[str, list[int]]] = {}

    def read_block(self, number: int, names: Sequence[str]) -> Mapping[str, Column]:
        file, group = self._groups[number]
        try:
            table = self._table(file, group, names)
        except (*FAILURES, OSError) as error:
            # Also what the store says: the file may be gone, or another one by now, and not damaged.
            if isinstance(error, HeadraceError):
                raise
            raise unreadable(self.block_place(number), "Parquet file", error) from error

        expected = int(self.starts[number + 1] - self.starts[number])
        if table.num_rows != expected:
            wrong = ValueError(f"{table.num_rows} rows instead of {expected}")
            raise unreadable(self.block_place(number), "Parquet file", wrong)

        place = self.block_place(number)
        columns = {}
        for name in names:
            stored = table.column(name)
            check_decoded(stored.chunks, place, self._trust)
            columns[name] = from_arrow(self.schema[name], stored, place)

        return columns

    def block_place(self, number: int) -> str:
        file, group = self._groups[number]
        return f"{self._files.names[file]}, row group {group}"

    def _table(self, file: int, group: int, names: Sequence[str]) -> pa.Table:
        """Reads columns of a row group, those with strings that could grow too long a few rows at a time."""
        with self._files.open_group(file, group, names) as (opened, pread):
            found = {}
            if not self._trust:
                found = self._look_at(pread, file, group, names)
            return self._read(opened, found, file, group, names)

    def _read(
        self, opened: pq.ParquetFile, found: Mapping[str, Pages], file: int, group: int, names: Sequence[str]
    ) -> pa.Table:
        place = f"{self._files.names[file]}, row group {group}"
        # Headers of pages tell what strings could become at worst: one word of a megabyte, named by each value. They do
        # not tell whether they do. Such columns are read a few rows at a time, and given up once they are too large.
        slow = {}
        for name, pages in found.items():
            if pages.repeated > allowed(pages.stored):
                slow[name] = pages

        quick = []
        for name in names:
            if name not in slow:
                quick.append(name)

        table = opened.read_row_group(group, columns=quick, use_threads=False)
        for name, pages in slow.items():
            # At worst each row holds the longest word.
            total = 0
            batches = []
            step = max(AT_ONCE // pages.longest, 1)
            for batch in opened.iter_batches(step, row_groups=[group], columns=[name], use_threads=False):
                total += batch.nbytes
                check_unfolding(place, f"column {name!r}", total, pages.stored)
                batches.append(batch)
            table = table.append_column(name, pa.Table.from_batches(batches).combine_chunks().column(0))

        return table

    def _look_at(self, pread: Pread, file: int, group: int, names: Sequence[str]) -> dict[str, Pages]:
        """Returns what the pages of columns say. Raises `FormatError` for those that would take too much memory."""
        metadata = self._files.metadata(file)
        found = {}
        if file not in self._leaves:
            self._leaves[file] = leaves_of(metadata)

        for name in names:
            found[name] = pages = look_at(pread, metadata, group, self._leaves[file].get(name, ()))
            what = f"column {name!r} of row group {group}"
            check_unfolding(self._files.names[file], what, max(pages.unpacked, pages.decoded), pages.stored)

        return found

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        found = []
        for number, _, _ in grouped(keys, self.starts):
            found += self._files.ranges(*self._groups[number], names)

        return found

    def column(self, name: str) -> Column | None:
        """See `Reader.column`: a column of fixed size is read whole when it is first asked for, if it fits."""
        found = self._whole.get(name)
        field = self.schema[name]
        if found is not None or field.kind != "fixed":
            return found

        size = len(self) * field.dtype.itemsize
        for length in field.shape:
            size *= length

        if size + self._bytes > self._keep:
            return None

        where = self._files.names[0]
        if len(self._files.names) > 1:
            where = f"{where} and {len(self._files.names) - 1} more"

        parts = []
        with decoding_whole(f"column {name!r} of {where}", size) as report:
            for number in range(len(self._groups)):
                parts.append(self.read_block(number, [name])[name])
                report(int(self.starts[number + 1]), len(self))

        self._whole[name] = column = joined(field, parts)
        self._bytes += size
        return column

    def _forget(self) -> None:
        super()._forget()
        self._whole = {}

    def __getstate__(self) -> dict[str, object]:
        state = {}
        for name, value in super().__getstate__().items():
            if name != "_whole":
                state[name] = value

        return state


class _Sink:
    """Writes record batches as row groups."""

    def __init__(self, path: str | Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(str(path), schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROWS):
            self._writer.write_batch(batch.slice(start, ROWS), row_group_size=ROWS)

    def close(self) -> None:
        self._writer.close()


def write_file(path: str | Path, schema: Schema) -> BatchWriter:
    """Begins one Parquet file."""
    return BatchWriter(schema, _Sink(path, arrow_schema(schema)))


def open_writer(path: str, schema: Schema) -> Writer:
    return GrowingFileWriter(NAME, path, schema, SUFFIXES, write_file)
