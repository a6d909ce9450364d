"""Tables of SQL databases as samples: number i is the row with the i-th key.

Whatever is read is asked for by keys, in queries of their own: no cursor stays open between two calls, as it would end
with its connection, and keep the server from cleaning up. A snapshot of the keys is taken when the data are opened.
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.process.per_process import Handle
from headrace.data.formats.columns import Block, Column, Field, Keys, Schema
from headrace.data.formats.protocol import even_blocks
from headrace.data.formats.sql.columns import WHOLE_ROW, TableRows, joined_rows, rows_from, schema_of
from headrace.data.formats.sql.read_ahead import Read, RowReadAhead, Run
from headrace.sources.sql.arrays import sent, shapes_of
from headrace.sources.sql.database import Database
from headrace.sources.sql.key_index import KeyIndex, keyed
from headrace.sources.sql.relation import Relation, SelectedColumn, selected
from headrace.sources.sql.targets import target_of

__all__ = ["NAME", "TITLE", "SQLReader", "open_sql"]

NAME = "sql"
TITLE = "table of a database"

KEPT = 64 << 20
"""Bytes of a table that a process keeps in memory once it has read about as many rows as it has."""

SCATTERED = 8
"""What a row read by its own key costs, about, in rows read one after the other."""

BLOCK = 1 << 13
"""Rows of a block, at most."""

AT_ONCE = 4096
"""Keys in one query."""

SHARE = 4
"""Neighbours are read as a run where at least one row in so many is wanted."""


def open_sql(source: Any, query: str | None, table: str | None, key: str | None, columns: Any = None) -> SQLReader:
    """Opens a table or a query as samples, in the order of a key.

    source: a URL, an engine of SQLAlchemy, or a function that returns a connection of DB-API 2. columns: only these are
    looked at. Raises `UsageError`, `FormatError` (keys that are none, columns that cannot be part of a sample),
    `StorageError`, `DatasetNotFoundError`, `MissingExtraError`.
    """
    target = target_of(source)
    relation = Relation.of(target.dialect, query, table)
    database = Database(target)
    found = database.columns(relation)
    relation = keyed(database, relation, found, key)
    # Columns that are not asked for may be of any type, and need no names of their own.
    names = dict.fromkeys(column.name for column in found)
    wanted = Schema(tuple(Field(name, "text") for name in names)).only(columns, database.place)
    found = selected(found, wanted.names, database.place)

    shapes = shapes_of(database, relation, found)
    schema = schema_of(found, shapes, database.place)
    asked = [sent(relation, column) if column.name in shapes else column for column in found]
    return SQLReader(database, relation, KeyIndex.read(database, relation), asked, schema)


class SQLReader:
    """Reads samples by their keys. Runs of neighbours are read ahead; a small table stays in memory when it was read.

    Connections, and what was read, belong to the process: none are sent to another one, or used after a fork.
    """

    format = NAME

    def __init__(
        self, database: Database, relation: Relation, index: KeyIndex, columns: list[SelectedColumn], schema: Schema
    ) -> None:
        self.place = database.place
        self.schema = schema
        self._database = database
        self._relation = relation
        self._index = index
        self._columns = {column.name: column for column in columns}
        self._reading: Handle[_TableReading] = Handle()

    def _open(self) -> _TableReading:
        return _TableReading(self._read_runs, self._read_rows, len(self), _bytes_of_row(self.schema))

    def __len__(self) -> int:
        return len(self._index)

    def column(self, name: str) -> Column | None:
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`. Raises `SampleError` for a row that is gone or empty, and `StorageError`."""
        return self._reading.get(self._open).fetch(keys, tuple(names))

    def blocks(self) -> Sequence[range]:
        return even_blocks(len(self), BLOCK)

    def stamp(self) -> str:
        """Returns a text that changes with the place, the query and the keys; not with what else is in the rows."""
        digest = hashlib.sha256(f"{self.place}\n{self._relation}\n{self._index.digest()}".encode())
        return digest.hexdigest()

    def _place_of(self, key: Any, column: str) -> str:
        number = int(key)
        row = self._index.at(np.array([number]))[0]
        name = self._relation.key.name if self._relation.key is not None else "key"
        place = f"{self.place}, sample {number:,}, row with {name} = {row}"
        if column == WHOLE_ROW:
            return place
        return f"{place}, column {column!r}"

    def _read_runs(self, runs: Sequence[Run], names: Sequence[str]) -> TableRows:
        """Reads runs of rows by one query, one run after the other."""
        numbers = np.concatenate([np.arange(start, stop) for start, stop in runs])
        ends = self._index.at(np.array(runs).reshape(-1) - np.array([0, 1] * len(runs)))
        words = self._relation.literals(ends)
        ranges = list(zip(words[::2], words[1::2], strict=True))
        return self._read(self._relation.within(ranges), numbers, names)

    def _read_rows(self, numbers: Keys, names: Sequence[str]) -> TableRows:
        """Reads rows, ascending and each once: by their keys, and as runs where they lie close."""
        parts = []
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            runs, single = plan(some)
            conditions = []
            if runs:
                ends = self._relation.literals(
                    self._index.at(np.array(runs).reshape(-1) - np.array([0, 1] * len(runs)))
                )
                conditions.append(self._relation.within(list(zip(ends[::2], ends[1::2], strict=True))))
            if len(single):
                conditions.append(self._relation.among(self._relation.literals(self._index.at(single))))
            parts.append(self._read(" or ".join(conditions), some, names))

        return joined_rows(self.schema.only(names), parts)

    def _read(self, where: str, numbers: Keys, names: Sequence[str]) -> TableRows:
        schema = self.schema.only(names)
        columns = [self._columns[name] for name in schema.names]
        types = [(column.name, column.type) for column in self._relation.asked(columns)]
        answer = self._database.read(self._relation.select(columns, where), pa.schema(types))
        places = self._index.found(numbers, answer.table.column(0))
        return rows_from(answer, schema, numbers, places, self._place_of)

    def __repr__(self) -> str:
        return f"<reader of {self.place}, {len(self):,} rows>"


def plan(numbers: Keys) -> tuple[list[Run], Keys]:
    """Returns how rows are best read: runs (first, behind the last), and single ones. numbers: int64 [k], ascending."""
    edges = np.flatnonzero(np.diff(numbers) > SHARE) + 1
    runs = []
    single = []
    for part in np.split(numbers, edges):
        if len(part) >= 2 * SCATTERED:
            runs.append((int(part[0]), int(part[-1]) + 1))
        else:
            single.append(part)

    if not single:
        return runs, np.empty(0, np.int64)
    return runs, np.concatenate(single)


def _bytes_of_row(schema: Schema) -> float:
    """Returns the bytes of a row; 0 if rows differ."""
    total = 0
    for field in schema:
        if field.kind != "fixed":
            return 0.0
        total += field.dtype.itemsize * math.prod(field.shape)

    return float(total)


class _TableReading:
    """What a process has read of a table, and is about to read."""

    def __init__(self, read_runs: Read, read_rows: Any, length: int, row_bytes: float) -> None:
        self._read_runs = read_runs
        self._read_rows = read_rows
        self._length = length
        self._ahead = RowReadAhead(read_runs, length, row_bytes)
        self._lock = threading.Lock()
        self._cost = 0
        self._whole: tuple[tuple[str, ...], TableRows] | None = None
        self._is_filling = False

    def fetch(self, keys: Keys, names: tuple[str, ...]) -> Block:
        start = int(keys[0]) if len(keys) else 0
        is_run = len(keys) > 0 and int(keys[-1]) - start == len(keys) - 1 and bool((np.diff(keys) == 1).all())
        whole = self._whole
        if whole is not None and whole[0] == names:
            return whole[1].run(start, start + len(keys)) if is_run else whole[1].take(keys)

        if is_run:
            block = self._ahead.fetch(start, start + len(keys), names)
            self._count(len(keys), self._ahead.row_bytes, names)
            return block

        numbers, places = np.unique(keys, return_inverse=True)
        rows: TableRows = self._read_rows(numbers, names)
        if len(rows):
            self._count(SCATTERED * len(rows), rows.nbytes / len(rows), names)
        return rows.take(places)

    def _count(self, cost: int, row_bytes: float, names: tuple[str, ...]) -> None:
        """Notes what was read, and has all of a small table read once that is no more than was read already."""
        if row_bytes * self._length > KEPT:
            return

        with self._lock:
            self._cost += cost
            if self._cost <= self._length or self._is_filling:
                return
            self._is_filling = True

        work = functools.partial(self._fill, names)
        threading.Thread(target=work, name="headrace-sql-whole", daemon=True).start()

    def _fill(self, names: tuple[str, ...]) -> None:
        parts = []
        held = 0
        try:
            for block in even_blocks(self._length, 1 << 16):
                rows = self._read_runs([(block.start, block.stop)], names)
                held += rows.nbytes
                # Rows at the end may be larger than those that were seen.
                if held > KEPT:
                    return
                parts.append(rows)
            self._whole = names, joined_rows(parts[0].block.schema, parts)
        except Exception:  # noqa: BLE001 - whoever asks for a row reads it, and gets the error
            return
