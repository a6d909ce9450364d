"""A reader of columns that lie in files of a store, read by ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from headrace.core.ragged import Array, Column, Keys
from headrace.data.formats.columns.block import Block
from headrace.data.formats.columns.byte_spans import Addresses
from headrace.data.formats.columns.remote_arrays import (
    FixedColumn,
    FixedReading,
    KeptArrays,
    RaggedColumn,
    RaggedReading,
    Reading,
    StoredArray,
    read_units,
)
from headrace.data.formats.columns.schema import Schema
from headrace.data.formats.protocol import even_blocks
from headrace.storage.fetching.ranges import ByteRange

RUN = 1 << 24
"""Bytes of a run of samples that is read at a time."""

StoredColumn = FixedColumn | RaggedColumn
ColumnReading = FixedReading | RaggedReading


class BlockColumns(Protocol):
    """Columns that cannot be read sample by sample: they are decoded in blocks of samples."""

    nbytes: int
    """Of all samples, as they are stored."""

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        """See `RemoteReader.byte_ranges`."""

    def blocks(self) -> Sequence[range]:
        """See `Reader.blocks`."""


class RemoteColumnsReader:
    """A `Reader`. What is small is read whole when it is first needed, and kept; see `remote_arrays.py`."""

    def __init__(
        self,
        format_name: str,
        place: str,
        schema: Schema,
        length: int,
        addresses: Addresses,
        columns: Mapping[str, StoredColumn],
        others: BlockColumns | None = None,
    ) -> None:
        """columns: by name. others: has all columns of the schema that are not among these."""
        self.format = format_name
        self.place = place
        self.schema = schema
        self._length = length
        self._addresses = addresses
        self._columns = columns
        self._others = others
        self._kept = KeptArrays(addresses)

    def __len__(self) -> int:
        return self._length

    def column(self, name: str) -> Column | None:
        """See `Reader.column`: returns the columns that are kept. Raises `StorageError`."""
        column = self._columns.get(name)
        if column is None or not column.is_kept:
            return None
        return column.in_memory(self._kept_of([column]))

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`. Raises `StorageError`, too."""
        schema = self.schema.only(names)
        wanted, others = self._divided(schema.names)
        kept = self._kept_of(wanted.values())
        columns: dict[str, Column] = {}
        offsets = self._read_offsets(keys, wanted)
        plans = {}
        for name, column in wanted.items():
            if column.is_kept:
                columns[name] = column.take(keys, kept)
            else:
                plans[name] = _plan(column, keys, kept, offsets.get(name))

        parts = read_units([plan.units for plan in plans.values()], self._addresses)
        for (name, plan), data in zip(plans.items(), parts, strict=True):
            columns[name] = plan.column(data)

        if others and self._others is not None:
            columns |= self._others.fetch(keys, others).columns
        return Block(schema, columns)

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        """See `RemoteReader.byte_ranges`. What is read once and kept is not among them.

        Of columns whose offsets are too many to be kept, the ranges of the offsets alone. Raises `IndexError`.
        """
        if len(keys) and not 0 <= int(keys.min()) <= int(keys.max()) < self._length:
            raise IndexError(f"there are no such samples among {self._length}")

        wanted, others = self._divided(names)
        kept = self._kept_of(wanted.values())
        found = []
        for column in wanted.values():
            if isinstance(column, RaggedColumn) and not column.offsets_are_kept:
                found += column.plan_offsets(keys).units.ranges(self._addresses)
            elif not column.is_kept:
                found += _plan(column, keys, kept, None).units.ranges(self._addresses)

        if others and self._others is not None:
            found += self._others.byte_ranges(keys, others)
        return found

    def fetch_windows(self, starts: Keys, length: int, names: Sequence[str]) -> dict[str, Array]:
        plans = {}
        found = {}
        for name in names:
            column = self._columns.get(name)
            if isinstance(column, FixedColumn) and not column.is_kept:
                plans[name] = column.plan_windows(starts, length)
            else:
                rows = (starts[:, None] + np.arange(length)).reshape(-1)
                samples = self.fetch(rows, [name]).columns[name]
                found[name] = np.asarray(samples).reshape(len(starts), length, *self.schema[name].shape)

        parts = read_units([plan.units for plan in plans.values()], self._addresses)
        for (name, plan), data in zip(plans.items(), parts, strict=True):
            found[name] = plan.column(data)

        return found

    def window_ranges(self, starts: Keys, length: int, names: Sequence[str]) -> list[ByteRange]:
        found = []
        for name in names:
            column = self._columns.get(name)
            if isinstance(column, FixedColumn) and not column.is_kept:
                found += column.plan_windows(starts, length).units.ranges(self._addresses)
            elif column is None:
                rows = (starts[:, None] + np.arange(length)).reshape(-1)
                found += self.byte_ranges(rows, [name])

        return found

    def blocks(self) -> Sequence[range]:
        total = sum(column.nbytes for column in self._columns.values())
        if self._others is not None:
            # Where they are most of the data, each block is to be read once, and not by several workers.
            if self._others.nbytes > total:
                return self._others.blocks()
            total += self._others.nbytes

        size = min(max(int(RUN * self._length / max(total, 1)), 1), RUN)
        # A power of two: runs then begin where blocks of small samples do.
        return even_blocks(self._length, 1 << (size.bit_length() - 1))

    def _divided(self, names: Sequence[str]) -> tuple[dict[str, StoredColumn], list[str]]:
        """Returns the columns of names that are read sample by sample, and the names of the others."""
        wanted = {}
        others = []
        for name in names:
            if name in self._columns:
                wanted[name] = self._columns[name]
            else:
                others.append(name)

        return wanted, others

    def _kept_of(self, columns: Iterable[StoredColumn]) -> dict[str, Array]:
        """Returns the arrays of columns that are kept."""
        arrays: dict[str, StoredArray] = {}
        for column in columns:
            arrays |= column.kept()

        return self._kept.get(arrays)

    def _read_offsets(self, keys: Keys, columns: Mapping[str, StoredColumn]) -> dict[str, tuple[Array, Keys]]:
        """Reads the offsets of samples, of those columns whose offsets are not kept."""
        readings: dict[str, Reading] = {}
        for name, column in columns.items():
            if isinstance(column, RaggedColumn) and not column.offsets_are_kept:
                readings[name] = column.plan_offsets(keys)

        parts = read_units([reading.units for reading in readings.values()], self._addresses)
        found = {}
        for (name, reading), data in zip(readings.items(), parts, strict=True):
            found[name] = reading.rows(data)

        return found


def _plan(
    column: StoredColumn, keys: Keys, kept: Mapping[str, Array], offsets: tuple[Array, Keys] | None
) -> ColumnReading:
    if isinstance(column, RaggedColumn):
        return column.plan(keys, kept, offsets)
    return column.plan(keys)
