"""Readers of data that come as Arrow tables: all of it at once, or block by block."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.data.formats.columns import Block, Column, Keys, joined
from headrace.data.formats.columns.arrow_columns import check_decoded, from_arrow
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.protocol import Handle, even_blocks

RUN = 1 << 24


class ChunkedColumn:
    """A column in several pieces, each in memory or mapped into it."""

    def __init__(self, field: Field, parts: Sequence[Column]) -> None:
        self._field = field
        self.parts = parts

    def take(self, groups: Sequence[tuple[int, Keys, Keys]], count: int) -> Column:
        """Copies the samples of `groups`, each (number of the piece, keys within it, places in the result)."""
        if self._field.kind != "fixed":
            taken = joined(self._field, [self.parts[number].take(keys) for number, keys, _ in groups])
            order = np.empty(count, np.int64)
            order[np.concatenate([positions for _, _, positions in groups])] = np.arange(count)
            return taken.take(order)

        out = np.empty((count, *self._field.shape), self._field.dtype)
        for number, keys, positions in groups:
            out[positions] = np.asarray(self.parts[number])[keys]

        return out


def grouped(keys: Keys, starts: Keys) -> list[tuple[int, Keys, Keys]]:
    """Groups keys by the piece they lie in: (piece, keys within it, their places among `keys`); pieces ascending.

    starts: the first key of each piece, and the end of the last [pieces + 1].
    """
    pieces = np.searchsorted(starts, keys, "right") - 1
    order = np.argsort(pieces, kind="stable")
    ordered = pieces[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    groups = []
    groups_of_positions: list[Keys]
    if len(keys):
        groups_of_positions = np.split(order, edges)
    else:
        groups_of_positions = []

    for positions in groups_of_positions:
        piece = int(pieces[positions[0]])
        groups.append((piece, keys[positions] - starts[piece], positions))

    return groups


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
        self._opened: Handle[_OpenTable] = Handle(self._open)

    def _open(self) -> _OpenTable:
        return _OpenTable(self._table.get(), self.place, self._trust)

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        """See `Reader.column`."""
        opened = self._opened.get()
        parts = opened.column(self.schema[name]).parts
        if len(parts) == 1:
            return parts[0]
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        opened = self._opened.get()
        schema = self.schema.only(names)
        groups = grouped(keys, opened.starts)
        if not groups:
            return Block(schema, {field.name: joined(field, []) for field in schema})
        return Block(schema, {field.name: opened.column(field).take(groups, len(keys)) for field in schema})

    def blocks(self) -> Sequence[range]:
        """See `Reader.blocks`."""
        table = self._table.get()
        size = int(RUN * self._length / max(table.get_total_buffer_size(), 1))
        return even_blocks(self._length, min(max(size, 1), RUN))


class _OpenTable:
    """A table as this process sees it; columns are looked at when they are first asked for."""

    def __init__(self, table: pa.Table, place: str, trust: bool) -> None:
        self._place = place
        self._trust = trust
        filled = []
        for batch in table.to_batches():
            if batch.num_rows:
                filled.append(batch)

        self._batches = filled or table.to_batches()
        self.starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        self._numbers = {name: number for number, name in enumerate(table.schema.names)}
        self._columns: dict[str, ChunkedColumn] = {}

    def column(self, field: Field) -> ChunkedColumn:
        found = self._columns.get(field.name)
        if found is None:
            index = self._numbers[field.name]
            check_decoded([batch.column(index) for batch in self._batches], self._place, self._trust)
            parts = [from_arrow(field, batch.column(index), self._place) for batch in self._batches]
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
        """See `Reader.column`."""
        return None

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        schema = self.schema.only(names)
        groups = grouped(keys, self.starts)
        if not groups:
            return Block(schema, {field.name: joined(field, []) for field in schema})

        taken = []
        for number, inner, positions in groups:
            columns = self._block(number, schema.names)
            part = Block(schema, columns)
            if _is_all(inner, part):
                rows = part
            else:
                rows = part.take(inner)

            taken.append((rows, positions))

        return _in_order(schema, taken, len(keys))

    def blocks(self) -> Sequence[range]:
        """See `Reader.blocks`."""
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

        if missing:
            read = dict(self.read_block(number, missing))
            found |= read
            with self._lock:
                for name, column in read.items():
                    self._kept[number, name] = column
                    self._bytes += column.nbytes

                while self._bytes > self._keep and len(self._kept) > len(names):
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes

        return found

    def __getstate__(self) -> dict[str, Any]:
        left = {"_kept", "_bytes", "_lock"}
        kept_state = {}
        for name, value in self.__dict__.items():
            if name not in left:
                kept_state[name] = value

        return kept_state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def _is_all(keys: Keys, block: Block) -> bool:
    return len(keys) == len(block) and bool((keys == np.arange(len(keys))).all())


def _in_order(schema: Schema, taken: Sequence[tuple[Block, Keys]], count: int) -> Block:
    if len(taken) == 1:
        return taken[0][0]

    order = np.empty(count, np.int64)
    order[np.concatenate([positions for _, positions in taken])] = np.arange(count)
    in_order = bool((order == np.arange(count)).all())
    columns: dict[str, Column] = {}
    for field in schema:
        if in_order:
            columns[field.name] = joined(field, [part.columns[field.name] for part, _ in taken])
        elif field.kind == "fixed":
            out = np.empty((count, *field.shape), field.dtype)
            for part, positions in taken:
                out[positions] = part.columns[field.name]
            columns[field.name] = out
        else:
            columns[field.name] = joined(field, [part.columns[field.name] for part, _ in taken]).take(order)

    return Block(schema, columns)
