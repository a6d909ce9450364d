"""Readers of data that come as Arrow tables: all of it at once, or block by block."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.process.per_process import Handle
from headrace.data.formats.arrow.columns import check_decoded, from_arrow
from headrace.data.formats.columns import Block, Column, Keys, Ragged, SampleOrigin, concatenated, joined
from headrace.data.formats.columns.grouping import grouped, rows_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.protocol import even_blocks

RUN = 1 << 24
"""Bytes of a run of samples that is read at a time."""


class ChunkedColumn:
    """A column in several pieces, each in memory or mapped into it."""

    def __init__(self, field: Field, parts: Sequence[Column]) -> None:
        self._field = field
        self.parts = parts

    def take(self, groups: Sequence[tuple[int, Keys, Keys]], count: int) -> Column:
        """Copies the samples of `groups`, each (number of the piece, keys within it, places in the result)."""
        if self._field.kind != "fixed":
            taken = [self.parts[number].take(keys) for number, keys, _ in groups]
            return joined(self._field, taken).take(rows_of(groups, count))

        out = np.empty((count, *self._field.shape), self._field.dtype)
        for number, keys, positions in groups:
            out[positions] = np.asarray(self.parts[number])[keys]

        return out

    def run(self, pieces: Sequence[tuple[int, int, int]]) -> Column:
        """Returns neighbouring samples: of each of `pieces` (number, first sample in it, end), one after the other.

        Numbers of one piece come without a copy if nobody can write to them.
        """
        found: list[Any] = []
        for number, start, stop in pieces:
            part = self.parts[number]
            if isinstance(part, Ragged):
                found.append(part.take(np.arange(start, stop)))
            else:
                found.append(part[start:stop])

        if len(found) != 1:
            return joined(self._field, found)

        (only,) = found
        # What was decoded is kept here: others must not write into it.
        if isinstance(only, np.ndarray) and only.flags.writeable:
            return only.copy()
        kept: Column = only
        return kept


class TableReader:
    """A reader of Arrow tables that are in memory, or mapped into it: one piece for each chunk."""

    def __init__(
        self,
        format_name: str,
        place: str,
        schema: Schema,
        length: int,
        load: Callable[[], pa.Table],
        trust: bool = False,
    ) -> None:
        """`load` opens the table; it is called once per process, when first needed. trust: see `check_decoded`."""
        self.format = format_name
        self.place = place
        self.schema = schema
        self._length = length
        self._trust = trust
        self._table: Handle[pa.Table] = Handle(load)
        self._opened: Handle[_OpenTable] = Handle()

    def _open(self) -> _OpenTable:
        return _OpenTable(self._table.get(), self.place, self._trust)

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        opened = self._opened.get(self._open)
        parts = opened.column(self.schema[name]).parts
        if len(parts) == 1:
            return parts[0]
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        opened = self._opened.get(self._open)
        schema = self.schema.only(names)
        if len(keys) == 0:
            return concatenated(schema, [])

        columns = {}
        if _is_run(keys):
            pieces = _pieces_of(int(keys[0]), int(keys[-1]) + 1, opened.starts)
            for field in schema:
                columns[field.name] = opened.column(field).run(pieces)
            return Block(schema, columns)

        groups = grouped(keys, opened.starts)
        for field in schema:
            columns[field.name] = opened.column(field).take(groups, len(keys))

        return Block(schema, columns)

    def blocks(self) -> Sequence[range]:
        table = self._table.get()
        size = int(RUN * self._length / max(table.get_total_buffer_size(), 1))
        return even_blocks(self._length, min(max(size, 1), RUN))


def _is_run(keys: Keys) -> bool:
    """Tells whether keys, of which there is at least one, follow each other."""
    return int(keys[-1]) - int(keys[0]) == len(keys) - 1 and bool((np.diff(keys) == 1).all())


def _pieces_of(start: int, stop: int, starts: Keys) -> list[tuple[int, int, int]]:
    """Returns where samples start .. stop-1 lie: (piece, first sample in it, end).

    starts: the first sample of each piece, and the end of the last [pieces + 1].
    """
    pieces = []
    first = int(np.searchsorted(starts, start, "right")) - 1
    last = int(np.searchsorted(starts, stop - 1, "right")) - 1
    for number in range(first, last + 1):
        begin = int(starts[number])
        end = int(starts[number + 1])
        pieces.append((number, max(start, begin) - begin, min(stop, end) - begin))

    return pieces


class _OpenTable:
    """A table as this process sees it; columns are looked at when they are first asked for."""

    def __init__(self, table: pa.Table, place: str, trust: bool) -> None:
        self._place = place
        self._trust = trust
        filled = []
        for batch in table.to_batches():
            if batch.num_rows:
                filled.append(batch)

        # A table of empty batches keeps them: the columns are looked up in the first one.
        self._batches = filled or table.to_batches()
        lengths = [batch.num_rows for batch in self._batches]
        self.starts = np.cumsum([0, *lengths])
        self._numbers = {name: number for number, name in enumerate(table.schema.names)}
        self._columns: dict[str, ChunkedColumn] = {}

    def column(self, field: Field) -> ChunkedColumn:
        found = self._columns.get(field.name)
        if found is None:
            index = self._numbers[field.name]
            chunks = [batch.column(index) for batch in self._batches]
            # Before the first chunk is decoded: a dictionary of damaged or hostile data would take all memory there.
            check_decoded(chunks, self._place, self._trust)

            parts = []
            for chunk in chunks:
                parts.append(from_arrow(field, chunk, self._place))

            # Two threads may come here at once; both make the same column, and either may stay.
            found = self._columns[field.name] = ChunkedColumn(field, parts or [joined(field, [])])

        return found


class BlockReader(ABC):
    """A reader of data that can only be read in blocks: blocks that were read are kept, up to a number of bytes.

    Random reading of data larger than that is slow, since each sample may cost its whole block.
    """

    def __init__(self, place: str, schema: Schema, lengths: Sequence[int], keep: int) -> None:
        """lengths: of each block, in samples."""
        self.place = place
        self.schema = schema
        self.starts = np.cumsum([0, *lengths])
        self._keep = keep
        self._forget()

    def _forget(self) -> None:
        self._kept: OrderedDict[tuple[int, str], Column] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @abstractmethod
    def read_block(self, number: int, names: Sequence[str]) -> Mapping[str, Column]:
        """Reads columns of one block; raises `FormatError`."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def column(self, name: str) -> Column | None:
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        schema = self.schema.only(names)
        groups = grouped(keys, self.starts)
        parts = []
        for number, inner, _ in groups:
            part = Block(schema, self._block(number, schema.names))
            if not _is_all(inner, part):
                part = part.take(inner)
            parts.append(part)

        block = _in_order(schema, groups, parts, len(keys))
        return dataclasses.replace(block, origin=SampleOrigin(self._place_of, keys))

    def block_place(self, number: int) -> str:
        """Returns where a block lies, as a user would call it."""
        return self.place

    def _place_of(self, key: Any, column: str) -> str:
        number = int(np.searchsorted(self.starts, key, side="right")) - 1
        row = int(key - self.starts[number])
        return f"{self.block_place(number)}, row {row:,}, column {column!r}"

    def blocks(self) -> Sequence[range]:
        edges = self.starts.tolist()
        runs = []
        for start, stop in itertools.pairwise(edges):
            if stop > start:
                runs.append(range(start, stop))

        return runs

    def _block(self, number: int, names: Sequence[str]) -> dict[str, Column]:
        with self._lock:
            found = {}
            for name in names:
                if (number, name) in self._kept:
                    found[name] = self._kept[number, name]

            for name in found:
                self._kept.move_to_end((number, name))

        missing = []
        for name in names:
            if name not in found:
                missing.append(name)

        # Reading happens outside of the lock, so that threads read different blocks at once. Two that want the same
        # block both read it; the bytes are then counted twice, and some columns leave earlier than they must.
        if missing:
            read = dict(self.read_block(number, missing))
            for column in read.values():
                _protect(column)

            found |= read
            with self._lock:
                for name, column in read.items():
                    self._kept[number, name] = column
                    self._bytes += column.nbytes

                # The columns of this very block stay, however large they are: the caller is about to use them.
                while self._bytes > self._keep and len(self._kept) > len(names):
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes

        return found

    def __getstate__(self) -> dict[str, Any]:
        # A lock cannot be pickled, and decoded columns are quicker read again than sent to a worker.
        left = {"_kept", "_bytes", "_lock"}
        kept_state = {}
        for name, value in self.__dict__.items():
            if name not in left:
                kept_state[name] = value

        return kept_state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _protect(column: Column) -> None:
    """Makes a column that is kept read-only: a batch of a whole block may be a view of it, and belongs to the user."""
    if isinstance(column, Ragged):
        column.values.flags.writeable = False
    else:
        column.flags.writeable = False


def _is_all(keys: Keys, block: Block) -> bool:
    return len(keys) == len(block) and bool((keys == np.arange(len(keys))).all())


def _in_order(schema: Schema, groups: Sequence[tuple[int, Keys, Keys]], parts: Sequence[Block], count: int) -> Block:
    """Returns the samples of all parts, one part for each group, in the order of the keys that were asked for."""
    if len(parts) == 1:
        return parts[0]

    rows = rows_of(groups, count)
    if (rows == np.arange(count)).all():
        return concatenated(schema, parts)

    columns: dict[str, Column] = {}
    for field in schema:
        pieces = [part.columns[field.name] for part in parts]
        if field.kind != "fixed":
            columns[field.name] = joined(field, pieces).take(rows)
            continue

        # Written straight to their positions: joining and reordering would copy samples of one size twice.
        out = np.empty((count, *field.shape), field.dtype)
        for (_, _, positions), piece in zip(groups, pieces, strict=True):
            out[positions] = piece
        columns[field.name] = out

    return Block(schema, columns)
