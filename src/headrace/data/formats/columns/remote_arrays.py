"""Arrays that lie in files of a store, and the columns that they make up: read by ranges.

An array lies in one piece of a file or in several, such as one for each shard or record batch. Arrays of a few MB are
read whole when they are first needed, and kept by each process: a label of eight bytes must not cost a request. Of all
others a fetch reads what it needs (see `byte_spans.py`), with one call for all columns.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.process.per_process import Handle
from headrace.core.ragged import Array, Keys, Ragged, damaged_offsets, offsets_of
from headrace.data.formats.columns.byte_spans import (
    ALONE,
    Addresses,
    Units,
    block_bytes,
    block_units,
    exact_units,
)
from headrace.data.formats.columns.schema import Field
from headrace.storage.remote_files import read_into

SMALL = 4 << 20
"""Bytes of an array up to which it is read whole and kept."""

OFFSETS = 32 << 20
"""Bytes of an array of offsets up to which it is read whole and kept: values can be read ahead once they are known."""

TOGETHER = 512 << 20
"""Bytes that all arrays of a dataset take that are kept: those of very many columns must be smaller."""


@dataclass(frozen=True)
class Pieces:
    """Where an array lies, piece by piece: int64 [pieces] each."""

    files: Keys
    """The number of the file."""

    starts: Keys
    """The byte of the file at which the first row begins."""

    rows: Keys

    @classmethod
    def one(cls, file: int, start: int, rows: int) -> Pieces:
        """Returns a single piece."""
        return cls(np.array([file]), np.array([start]), np.array([rows]))


class StoredArray:
    """An array [rows, *shape] in files of a store, which is not read yet."""

    def __init__(self, addresses: Addresses, pieces: Pieces, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """dtype: as it is stored, in any byte order, also of records."""
        self.dtype = dtype
        self.shape = shape
        self.row_bytes = dtype.itemsize * math.prod(shape)
        self.firsts = np.zeros(len(pieces.rows) + 1, np.int64)
        """The first row of each piece, and the end of the last one."""

        np.cumsum(pieces.rows, out=self.firsts[1:])
        self._begins = addresses.of(pieces.files, pieces.starts)

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take."""
        return len(self) * self.row_bytes

    def reading(self, starts: Keys, stops: Keys, *, alone: bool) -> Reading:
        """Plans to read rows `starts[i]` to `stops[i] - 1`; no run of rows leads from one piece into the next.

        alone: whether to read just these rows, and not the blocks in which they lie.
        """
        # A sample without values may lie at the very end.
        pieces = np.minimum(np.searchsorted(self.firsts, starts, "right"), len(self._begins)) - 1
        begins = self._begins[pieces]
        first_rows = self.firsts[pieces]
        from_byte = begins + (starts - first_rows) * self.row_bytes
        to_byte = begins + (stops - first_rows) * self.row_bytes
        filled = from_byte < to_byte
        if alone:
            units = exact_units(from_byte[filled], to_byte[filled])
        else:
            ends = begins + (self.firsts[pieces + 1] - first_rows) * self.row_bytes
            size = block_bytes(max(self.row_bytes, 1))
            units = block_units(from_byte[filled], to_byte[filled], begins[filled], ends[filled], size)

        return Reading(self, units, from_byte)

    def split(self, starts: Keys, length: int) -> tuple[Keys, Keys]:
        """Returns runs of `length` rows cut where pieces end: starts and stops of their parts, in order."""
        first = np.searchsorted(self.firsts, starts, "right") - 1
        last = np.searchsorted(self.firsts, starts + length - 1, "right") - 1
        if (first == last).all():
            return starts, starts + length

        cut_starts = []
        cut_stops = []
        for start in starts.tolist():
            low = np.searchsorted(self.firsts, start, "right")
            high = np.searchsorted(self.firsts, start + length, "left")
            inner = self.firsts[low:high]
            edges = [start, *np.unique(inner).tolist(), start + length]
            cut_starts += edges[:-1]
            cut_stops += edges[1:]

        return np.array(cut_starts, np.int64), np.array(cut_stops, np.int64)

    def whole(self) -> Units:
        """Returns all of it, piece by piece in the order of the files' bytes."""
        ends = self._begins + np.diff(self.firsts) * self.row_bytes
        filled = self._begins < ends
        return exact_units(self._begins[filled], ends[filled])

    def from_whole(self, data: Array) -> Array:
        """Returns the array, from the bytes of `whole`: [rows, *shape]."""
        if self.nbytes == 0:
            return np.empty((len(self), *self.shape), self.dtype)

        rows = data.view(self.dtype).reshape(len(self), *self.shape)
        if (np.diff(self._begins) > 0).all():
            return rows

        # The pieces were written in another order than they come in.
        places = self.whole().places(self._begins) // self.row_bytes
        taken = np.repeat(places - self.firsts[:-1], np.diff(self.firsts)) + np.arange(len(self))
        ordered: Array = rows[taken]
        return ordered


class Reading:
    """Rows of an array that are about to be read."""

    def __init__(self, array: StoredArray, units: Units, addresses: Keys) -> None:
        """addresses: of the first byte of each run of rows."""
        self.array = array
        self.units = units
        self._addresses = addresses

    def rows(self, data: Array) -> tuple[Array, Keys]:
        """Returns all rows that were read, and where each run begins among them. data: uint8 [units.nbytes]."""
        array = self.array
        if array.row_bytes == 0 or len(data) == 0:
            return np.empty((0, *array.shape), array.dtype), np.zeros(len(self._addresses), np.int64)

        rows = data.view(array.dtype).reshape(-1, *array.shape)
        return rows, self.units.places(self._addresses) // array.row_bytes


class KeptArrays:
    """Arrays that are read whole when they are first needed, in each process."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._kept: Handle[_Kept] = Handle(_Kept)

    def get(self, arrays: Mapping[str, StoredArray]) -> dict[str, Array]:
        """Returns arrays by their names; those that are missing are read with one call. Raises `StorageError`."""
        kept = self._kept.get()
        # Held while they are read: another thread that needs the same ones waits, instead of reading them again.
        with kept.lock:
            missing = []
            for name in arrays:
                if name not in kept.arrays:
                    missing.append(name)

            units = [arrays[name].whole() for name in missing]
            for name, data in zip(missing, read_units(units, self._addresses), strict=True):
                array = arrays[name].from_whole(data)
                array.flags.writeable = False
                kept.arrays[name] = array

            return {name: kept.arrays[name] for name in arrays}


class _Kept:
    """What one process keeps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.arrays: dict[str, Array] = {}


def read_units(units: Sequence[Units], addresses: Addresses) -> list[Array]:
    """Reads units with one call. Returns the bytes of each, uint8."""
    ranges = []
    for wanted in units:
        ranges += wanted.ranges(addresses)

    # Each begins at a multiple of 8 bytes only if those before it are so long. NumPy reads from any address.
    data = np.empty(sum(wanted.nbytes for wanted in units), np.uint8)
    read_into(ranges, data.data)
    found = []
    at = 0
    for wanted in units:
        found.append(data[at : at + wanted.nbytes])
        at += wanted.nbytes

    return found


class FixedColumn:
    """Samples of one size. Holds no connection: it may be forked and pickled."""

    def __init__(self, field: Field, array: StoredArray, part: str | None = None, columns: int = 1) -> None:
        """part: the field of the array's records that is meant. columns: how many the dataset has."""
        self._field = field
        self._array = array
        self._part = part
        self.nbytes = array.nbytes
        """Of all samples."""

        self.is_kept = array.nbytes <= min(SMALL, TOGETHER // columns)
        """Whether all of it is read at its first use."""

        # Columns of the same records share the array that is kept.
        self._name = f"values of {field.name}"
        if part is not None:
            self._name = "records"

    def kept(self) -> dict[str, StoredArray]:
        """Returns the arrays that must be read before samples can be read, by names of their own."""
        if self.is_kept:
            return {self._name: self._array}
        return {}

    def in_memory(self, kept: Mapping[str, Array]) -> Array:
        """Returns all of the column, whose arrays are kept."""
        return self._typed(kept[self._name])

    def take(self, keys: Keys, kept: Mapping[str, Array]) -> Array:
        """Copies samples of a column whose arrays are kept."""
        return self._typed(kept[self._name][keys])

    def plan(self, keys: Keys) -> FixedReading:
        """Plans to read samples."""
        alone = self._array.row_bytes >= ALONE
        return FixedReading(self._array.reading(keys, keys + 1, alone=alone), self._typed)

    def plan_windows(self, starts: Keys, length: int) -> WindowReading:
        """Plans to read windows of `length` samples each, which begin at `starts`."""
        cut_starts, cut_stops = self._array.split(starts, length)
        alone = self._array.row_bytes * length >= ALONE
        reading = self._array.reading(cut_starts, cut_stops, alone=alone)
        return WindowReading(reading, cut_stops - cut_starts, length, self._typed)

    def _typed(self, rows: Array) -> Array:
        if self._part is not None:
            rows = rows[self._part]
        return rows.astype(self._field.dtype, copy=False)


class FixedReading:
    """Samples of a `FixedColumn` that are about to be read."""

    def __init__(self, reading: Reading, typed: Callable[[Array], Array]) -> None:
        self.units = reading.units
        self._reading = reading
        self._typed = typed

    def column(self, data: Array) -> Array:
        """Returns the samples, in memory of their own. data: what `units` brought, uint8."""
        rows, places = self._reading.rows(data)
        in_order = len(rows) == len(places) and bool((places == np.arange(len(places))).all())
        if not in_order or not rows.flags.aligned:
            rows = rows[places]
        return np.ascontiguousarray(self._typed(rows))


class WindowReading:
    """Windows of a `FixedColumn` that are about to be read."""

    def __init__(self, reading: Reading, lengths: Keys, length: int, typed: Callable[[Array], Array]) -> None:
        """lengths: of the runs of rows of which the windows consist. length: of a window."""
        self.units = reading.units
        self._reading = reading
        self._lengths = lengths
        self._length = length
        self._typed = typed

    def column(self, data: Array) -> Array:
        """Returns [windows, length, *shape], in memory of their own. data: what `units` brought, uint8."""
        rows, places = self._reading.rows(data)
        out = np.empty((int(self._lengths.sum()), *rows.shape[1:]), rows.dtype)
        at = 0
        for place, length in zip(places.tolist(), self._lengths.tolist(), strict=True):
            out[at : at + length] = rows[place : place + length]
            at += length

        typed = self._typed(out)
        return np.ascontiguousarray(typed).reshape(-1, self._length, *typed.shape[1:])


class RaggedColumn:
    """Samples of different lengths: offsets, in each piece one more than samples, and the values that they lead into.

    Offsets count from the beginning of their piece. Holds no connection: it may be forked and pickled.
    """

    def __init__(self, field: Field, offsets: StoredArray, values: StoredArray, place: str, columns: int = 1) -> None:
        """place: of the data, for messages. columns: how many the dataset has."""
        self._field = field
        self._offsets = offsets
        self._values = values
        self._place = f"{place}, column {field.name!r}"
        self._firsts = offsets.firsts - np.arange(len(offsets.firsts))
        self.nbytes = values.nbytes + offsets.nbytes
        """Of all samples."""

        self.offsets_are_kept = offsets.nbytes <= min(OFFSETS, TOGETHER // columns)
        """Whether all offsets are read at their first use."""

        self.is_kept = self.offsets_are_kept and values.nbytes <= min(SMALL, TOGETHER // columns)
        """Whether all of it is read at its first use."""

        self._alone = values.nbytes >= ALONE * int(self._firsts[-1])

    def kept(self) -> dict[str, StoredArray]:
        """Returns the arrays that must be read before samples can be read, by names of their own."""
        arrays = {}
        if self.offsets_are_kept:
            arrays[f"offsets of {self._field.name}"] = self._offsets
        if self.is_kept:
            arrays[f"values of {self._field.name}"] = self._values

        return arrays

    def in_memory(self, kept: Mapping[str, Array]) -> Ragged:
        """Returns all of the column, whose arrays are kept. Raises `FormatError` for damaged offsets."""
        offsets = kept[f"offsets of {self._field.name}"]
        values = self._values_in(kept)
        if len(self._firsts) == 2:
            return Ragged(values, offsets, place=self._place)

        # In several pieces, offsets that are damaged would lead into the values of another one.
        starts, lengths = self._pieces_of(np.arange(int(self._firsts[-1])), kept)
        return Ragged(values, None, starts, starts + lengths, self._place)

    def take(self, keys: Keys, kept: Mapping[str, Array]) -> Ragged:
        """Copies samples of a column whose arrays are kept. Raises `FormatError` for damaged offsets."""
        starts, lengths = self._pieces_of(keys, kept)
        return Ragged(self._values_in(kept), None, starts, starts + lengths).take(np.arange(len(keys)))

    def _values_in(self, kept: Mapping[str, Array]) -> Array:
        return kept[f"values of {self._field.name}"].astype(self._field.dtype, copy=False)

    def plan_offsets(self, keys: Keys) -> Reading:
        """Plans to read the offsets of samples, where they are too many to be kept."""
        rows = keys + np.searchsorted(self._firsts, keys, "right") - 1
        return self._offsets.reading(rows, rows + 2, alone=False)

    def plan(self, keys: Keys, kept: Mapping[str, Array], read: tuple[Array, Keys] | None) -> RaggedReading:
        """Plans to read samples. Raises `FormatError` for damaged offsets.

        read: what `Reading.rows` has returned of the offsets, where they are not kept.
        """
        if read is None:
            starts, lengths = self._pieces_of(keys, kept)
        else:
            rows, places = read
            starts, lengths = self._checked(keys, rows[places], rows[places + 1])

        return RaggedReading(self._values.reading(starts, starts + lengths, alone=self._alone), lengths, self._field)

    def _pieces_of(self, keys: Keys, kept: Mapping[str, Array]) -> tuple[Keys, Keys]:
        offsets = kept[f"offsets of {self._field.name}"]
        rows = keys + np.searchsorted(self._firsts, keys, "right") - 1
        return self._checked(keys, offsets[rows], offsets[rows + 1])

    def _checked(self, keys: Keys, starts: Array, stops: Array) -> tuple[Keys, Keys]:
        """Returns the first value of samples, counted over all pieces, and how many values they have."""
        pieces = np.searchsorted(self._firsts, keys, "right") - 1
        firsts = self._values.firsts[pieces]
        totals = self._values.firsts[pieces + 1] - firsts
        starts = starts.astype(np.int64)
        lengths = stops.astype(np.int64) - starts
        if ((lengths < 0) | (starts < 0) | (starts + lengths > totals)).any():
            raise damaged_offsets(self._place)
        return starts + firsts, lengths


class RaggedReading:
    """Samples of a `RaggedColumn` that are about to be read."""

    def __init__(self, reading: Reading, lengths: Keys, field: Field) -> None:
        """lengths: of the samples, in elements."""
        self.units = reading.units
        self._reading = reading
        self._lengths = lengths
        self._field = field

    def column(self, data: Array) -> Ragged:
        """Returns the samples, end to end in memory of their own. data: what `units` brought, uint8."""
        rows, places = self._reading.rows(data)
        # Nothing was read for samples without values: they may begin anywhere.
        places[self._lengths == 0] = 0
        offsets = offsets_of(self._lengths)
        in_order = len(rows) == int(offsets[-1]) and bool(((places == offsets[:-1]) | (self._lengths == 0)).all())
        if in_order and rows.flags.aligned:
            return Ragged(rows.astype(self._field.dtype, copy=False), offsets)

        taken = Ragged(rows, None, places, places + self._lengths).take(np.arange(len(places)))
        return taken.with_values(taken.values.astype(self._field.dtype, copy=False))
