"""Reads samples out of tar shards: neighbours in one read, each column as a view of what was read."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import FormatError
from headrace.data.formats.columns import Array, Block, Column, Keys, Ragged, column_from, joined
from headrace.data.formats.columns.arrays import NPY_FAILURES, cure_of, npy_from, unreadable
from headrace.data.formats.columns.grouping import grouped, rows_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.protocol import Handle
from headrace.data.formats.tar_index import TarIndex, index_of

KEY = "__key__"
RUN = 256
"""Samples that are read at a time when nobody says how many."""

GAP = 64 << 10
"""Bytes between two wanted files that are rather read than skipped."""

READ = 32 << 20
"""Bytes that are read at a time, at most, unless a single file is larger."""


Empty = Callable[[int], Array]


def new_bytes(count: int) -> Array:
    """Returns uninitialised memory, uint8 [count]."""
    return np.empty(count, np.uint8)


class TarReader:
    """Samples of shards. The headers of a shard are read when a sample of it, or the length, is asked for."""

    format = "webdataset"

    def __init__(self, path: str, files: Sequence[str], schema: Schema, endings: Mapping[str, str]) -> None:
        self.place = path
        self.schema = schema
        self.files = files
        self._endings = dict(endings)
        self._opened: Handle[_OpenTar] = Handle(_OpenTar)

    def __len__(self) -> int:
        return int(self._starts()[-1])

    def _starts(self) -> Keys:
        opened = self._opened.get()
        if opened.starts is None:
            counts = []
            for number in range(len(self.files)):
                counts.append(self.index(number).count)

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
        runs = []
        for start, stop in itertools.pairwise(starts):
            for first in range(start, stop, RUN):
                runs.append(range(first, min(first + RUN, stop)))

        return runs

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        """See `Reader.fetch`."""
        return self._fetch(grouped(keys, self._starts()), len(keys), self.schema.only(names), new_bytes)

    def shard_count(self) -> int:
        """See `Sharded.shard_count`."""
        return len(self.files)

    def shard_length(self, number: int) -> int:
        """See `Sharded.shard_length`."""
        return self.index(number).count

    def run_length(self) -> int:
        """See `Sharded.run_length`."""
        return RUN

    def fetch_pieces(self, pieces: Sequence[tuple[int, Keys]], names: Sequence[str], empty: Empty) -> Block:
        """See `Sharded.fetch_pieces`."""
        groups = []
        count = 0
        for number, keys in pieces:
            groups.append((number, keys, np.arange(count, count + len(keys))))
            count += len(keys)

        # A stream does not come back to earlier shards: their indices would pile up, of thousands of shards in the end.
        indices = self._opened.get().indices
        for number in list(indices):
            if number < pieces[0][0]:
                del indices[number]

        return self._fetch(groups, count, self.schema.only(names), empty)

    def _fetch(self, groups: Sequence[tuple[int, Keys, Keys]], count: int, schema: Schema, empty: Empty) -> Block:
        """Reads the samples of `groups`, each (shard, keys within it, positions in the result), into one buffer."""
        wanted = []
        for field in schema:
            if field.name != KEY:
                wanted.append(field)

        starts = np.zeros((len(wanted), count), np.int64)
        sizes = np.zeros((len(wanted), count), np.int64)
        runs: list[tuple[int, int, int]] = []
        total = 0
        for number, keys, positions in groups:
            index = self.index(number)
            for row, field in enumerate(wanted):
                column = self._place(index, number, field)
                starts[row, positions] = index.starts[keys, column]
                sizes[row, positions] = index.sizes[keys, column]
                if (missing := index.sizes[keys, column] < 0).any():
                    raise self._missing(number, index, int(keys[missing][0]), self._endings[field.name])

            if wanted:
                first = starts[:, positions].min(axis=0)
                last = (starts + sizes)[:, positions].max(axis=0)
                # From here on `starts` are places in the buffer, into which the runs are read one behind the other.
                for start, stop, members in _runs(first, last):
                    starts[:, positions[members]] += total - start
                    runs.append((number, start, stop))
                    total += stop - start

        buffer = self._read(runs, empty(total))
        columns: dict[str, Column] = {}
        for row, field in enumerate(wanted):
            if groups:
                first_shard = groups[0][0]
            else:
                first_shard = 0

            columns[field.name] = self._column(field, first_shard, buffer, starts[row], sizes[row])

        if KEY in schema.names:
            columns[KEY] = self._keys(groups, count)
        return Block(schema, columns)

    def _keys(self, groups: Sequence[tuple[int, Keys, Keys]], count: int) -> Ragged:
        parts: list[Column] = []
        for number, keys, _ in groups:
            index = self.index(number)
            parts.append(Ragged(index.names, index.name_ends).take(keys))

        if len(parts) == 1:
            return parts[0]  # type: ignore[return-value]

        return joined(Field(KEY, "text"), parts).take(rows_of(groups, count))  # type: ignore[return-value]

    def _read(self, runs: Sequence[tuple[int, int, int]], buffer: Array) -> Array:
        """Reads runs of bytes, each (shard, start, stop), one behind the other."""
        opened = self._opened.get()
        at = 0
        for number, start, stop in runs:
            descriptor = opened.descriptor(number, self.files[number])
            self._pread(descriptor, number, buffer[at : at + stop - start], start)
            at += stop - start

        return buffer

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
        return FormatError.about(
            "a sample lacks a file", place=self.files[number], found=found, expected=expected, cure=cure
        )

    def _pread(self, descriptor: int, number: int, target: Array, start: int) -> None:
        # One call reads 2 GiB at most, and may read less than it was asked for.
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
            return Ragged(data, None, starts, starts + sizes)

        place = self.files[number]
        values = []
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            values.append(decoded(ending, data[start : start + size].data, place))

        for value in values:
            array = np.asarray(value)
            if field.kind == "fixed":
                shape = array.shape
            else:
                shape = array.shape[1:]

            if array.dtype != field.dtype or shape != field.shape:
                found = f"{array.dtype.name} {list(array.shape)}"
                what = f"column {field.name!r} of a sample differs"
                raise FormatError.about(what, place=place, found=found, expected=str(field))

        return column_from(field, values)


class _OpenTar:
    """What one process has open."""

    def __init__(self) -> None:
        self.indices: dict[int, TarIndex] = {}
        self.starts: Keys | None = None
        self._descriptors: dict[int, int] = {}
        self._lock = threading.Lock()
        closing = weakref.finalize(self, _close_all, self._descriptors)
        # At the end of the process the system closes them, and other finalizers may still want to read.
        closing.atexit = False

    def descriptor(self, number: int, file: str) -> int:
        with self._lock:
            if number not in self._descriptors:
                # The oldest goes: a stream has left it behind, and a process may have 1,024 files open.
                while len(self._descriptors) >= 64:
                    os.close(self._descriptors.pop(next(iter(self._descriptors))))
                self._descriptors[number] = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            return self._descriptors[number]


def _close_all(descriptors: dict[int, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)


def _runs(starts: Array, stops: Array) -> list[tuple[int, int, Array]]:
    """Groups samples into runs of bytes to read: (start, stop, samples), with small gaps read along."""
    order = np.argsort(starts, kind="stable")
    firsts = starts[order]
    # The furthest end so far, as an earlier sample may reach further than the one before this.
    ends = np.maximum.accumulate(stops[order])
    edges = [0, *(np.flatnonzero(firsts[1:] - ends[:-1] > GAP) + 1).tolist(), len(order)]
    runs = []
    for a, b in itertools.pairwise(edges):
        if b > a:
            runs.append((int(firsts[a]), int(ends[b - 1]), order[a:b]))

    return runs


def decoded(ending: str, data: bytes | memoryview, place: str) -> Any:
    """Returns what a file holds, by its ending. Raises `FormatError`."""
    last = ending.rpartition(".")[2]
    try:
        if last == "cls":
            return np.int64(int(bytes(data)))
        if last == "npy":
            return npy_from(memoryview(data))
        if last in ("txt", "json"):
            return bytes(data).decode("utf-8", "surrogateescape")
    except NPY_FAILURES as error:
        raise unreadable(
            f"{place}, a file ending in .{ending}", "file of a tar shard", error, cure_of(error)
        ) from error

    return bytes(data)
