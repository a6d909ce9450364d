"""Reads samples out of tar shards: neighbours in one read, each column as a view of what was read."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import FormatError, explain
from headrace.formats.arrays import unreadable
from headrace.formats.columns import Array, Block, Column, Keys, Ragged, column_from, joined
from headrace.formats.protocol import Handle
from headrace.formats.schema import Field, Schema
from headrace.formats.tables import grouped
from headrace.formats.tar_index import TarIndex, index_of

KEY = "__key__"
RUN = 256
GAP = 64 << 10
"""Bytes between two wanted files that are rather read than skipped."""

READ = 32 << 20
"""Bytes that are read at a time, at most, unless a single file is larger."""


class TarReader:
    """Samples of shards. Headers of a shard are read when a sample of it, or the number of all samples, is asked for."""

    format = "webdataset"

    def __init__(
        self, path: str, files: Sequence[str], schema: Schema, endings: Mapping[str, str], counted: int | None = None
    ) -> None:
        self.place = path
        self.schema = schema
        self.files = files
        self._endings = dict(endings)
        self._counted = counted
        self._opened: Handle[_Opened] = Handle(_Opened)

    def __len__(self) -> int:
        return int(self._starts()[-1])

    def _starts(self) -> Keys:
        opened = self._opened.get()
        if opened.starts is None:
            if len(self.files) == 1 and self._counted is not None:
                counts = [self._counted]
            else:
                counts = [self.index(number).count for number in range(len(self.files))]
            opened.starts = np.cumsum([0, *counts])
        return opened.starts

    def index(self, number: int) -> TarIndex:
        """Returns where the samples of a shard lie."""
        opened = self._opened.get()
        found = opened.indices.get(number)
        if found is None:
            found = opened.indices[number] = index_of(self.files[number])
        return found

    def column(self, name: str) -> Column | None:
        """See `Reader.column`."""
        return None

    def blocks(self) -> Sequence[range]:
        """See `Reader.blocks`."""
        starts = self._starts().tolist()
        return [
            range(first, min(first + RUN, stop))
            for start, stop in zip(starts, starts[1:], strict=False)
            for first in range(start, stop, RUN)
        ]

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        schema = self.schema.only(names)
        groups = grouped(keys, self._starts())
        parts = [self.fetch_from(number, inner, schema) for number, inner, _ in groups]
        if len(parts) == 1:
            return parts[0]
        whole = Block(schema, {f.name: joined(f, [part.columns[f.name] for part in parts]) for f in schema})
        order = np.empty(len(keys), np.int64)
        if groups:
            order[np.concatenate([places for _, _, places in groups])] = np.arange(len(keys))
        return whole.take(order)

    def fetch_from(self, number: int, keys: Keys, schema: Schema) -> Block:
        """Returns samples of one shard, by their numbers within it."""
        index = self.index(number)
        columns: dict[str, Column] = {}
        wanted = [field for field in schema if field.name != KEY]
        places = [self._place(index, number, field) for field in wanted]
        data, shift = self._read(number, index, keys, places)
        for field, place in zip(wanted, places, strict=True):
            starts, sizes = index.starts[keys, place] - shift, index.sizes[keys, place]
            if (sizes < 0).any():
                raise self._missing(number, index, int(keys[np.argmax(sizes < 0)]), self._endings[field.name])
            columns[field.name] = self._column(field, number, data, starts, sizes)
        if KEY in schema.names:
            columns[KEY] = Ragged(index.names, index.name_ends).take(keys)
        return Block(schema, columns)

    def _place(self, index: TarIndex, number: int, field: Field) -> int:
        ending = self._endings[field.name]
        if ending not in index.endings:
            if index.count == 0:
                return -1
            raise self._missing(number, index, 0, ending)
        return index.endings.index(ending)

    def _missing(self, number: int, index: TarIndex, sample: int, ending: str) -> FormatError:
        name = index.names[index.name_ends[sample] : index.name_ends[sample + 1]].tobytes().decode("utf-8", "replace")
        found = f"no {name}.{ending}"
        cure = "leave the column out with columns=, or make the shard again"
        expected = "the same files for each sample"
        message = explain("a sample lacks a file", place=self.files[number], found=found, expected=expected, cure=cure)
        return FormatError(message)

    def _read(self, number: int, index: TarIndex, keys: Keys, places: Sequence[int]) -> tuple[Array, Array]:
        """Reads all wanted files into one buffer. Returns it, and by how much each sample's offsets shift."""
        if not places or not len(keys):
            return np.empty(0, np.uint8), np.zeros(len(keys), np.int64)
        starts = index.starts[np.ix_(keys, places)].min(axis=1)
        stops = (index.starts + np.maximum(index.sizes, 0))[np.ix_(keys, places)].max(axis=1)
        runs = _runs(starts, stops)
        total = sum(stop - start for start, stop, _ in runs)
        buffer = np.empty(total, np.uint8)
        shift, at = np.empty(len(keys), np.int64), 0
        descriptor = self._opened.get().descriptor(number, self.files[number])
        for start, stop, members in runs:
            self._pread(descriptor, number, buffer[at : at + stop - start], start)
            shift[members] = start - at
            at += stop - start
        return buffer, shift

    def _pread(self, descriptor: int, number: int, target: Array, start: int) -> None:
        done = 0
        while done < len(target):
            got = os.preadv(descriptor, [target[done : done + READ].data], start + done)
            if got == 0:
                error = ValueError("the file has become shorter while it was read")
                raise unreadable(self.files[number], "tar shard", error)
            done += got

    def _column(self, field: Field, number: int, data: Array, starts: Array, sizes: Array) -> Column:
        ending = self._endings[field.name]
        plain = field.kind in ("bytes", "text")
        if plain:
            return pieces(data, starts, sizes)
        place = self.files[number]
        values = [
            decoded(ending, data[start : start + size].data, place)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]
        for value in values:
            array = np.asarray(value)
            if array.dtype != field.dtype or (array.shape if field.kind == "fixed" else array.shape[1:]) != field.shape:
                found = f"{array.dtype.name} {list(array.shape)}"
                what = f"column {field.name!r} of a sample differs"
                raise FormatError(explain(what, place=place, found=found, expected=str(field)))
        return column_from(field, values)


class _Opened:
    """What one process has open."""

    def __init__(self) -> None:
        self.indices: dict[int, TarIndex] = {}
        self.starts: Keys | None = None
        self._descriptors: dict[int, int] = {}
        self._lock = threading.Lock()

    def descriptor(self, number: int, file: str) -> int:
        with self._lock:
            if number not in self._descriptors:
                while len(self._descriptors) >= 64:
                    os.close(self._descriptors.pop(next(iter(self._descriptors))))
                self._descriptors[number] = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            return self._descriptors[number]

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def _runs(starts: Array, stops: Array) -> list[tuple[int, int, Array]]:
    """Groups samples into runs of bytes to read: (start, stop, samples), with small gaps read along."""
    order = np.argsort(starts, kind="stable")
    ends = np.maximum.accumulate(stops[order])
    cuts = np.flatnonzero(starts[order][1:] - ends[:-1] > GAP) + 1
    return [(int(starts[run[0]]), int(stops[run].max()), run) for run in np.split(order, cuts)]


def pieces(data: Array, starts: Array, sizes: Array) -> Ragged:
    """Returns pieces of a buffer as a column."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    values = np.empty(int(offsets[-1]), np.uint8)
    for start, size, at in zip(starts.tolist(), sizes.tolist(), offsets.tolist(), strict=False):
        values[at : at + size] = data[start : start + size]
    return Ragged(values, offsets)


def decoded(ending: str, data: Any, place: str) -> Any:
    """Returns what a file holds, by its ending. Raises `FormatError`."""
    last = ending.rpartition(".")[2]
    try:
        if last == "cls":
            return np.int64(int(bytes(data)))
        if last == "npy":
            return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        if last in ("txt", "json"):
            return bytes(data).decode("utf-8", "surrogateescape")
    except (
        ValueError,
        EOFError,
        TypeError,
        SyntaxError,
        OverflowError,
        KeyError,
        MemoryError,
        RecursionError,
    ) as error:
        raise unreadable(f"{place}, a file ending in .{ending}", "file of a tar shard", error) from error
    return bytes(data)
