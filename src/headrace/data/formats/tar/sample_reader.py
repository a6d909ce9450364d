"""Reads samples out of tar shards: neighbours in one read, each column as a view of what was read."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.errors import FormatError
from headrace.core.process.per_process import Handle
from headrace.data.formats.columns import Array, Block, Column, Keys, Ragged, SampleOrigin, column_from, exactly, joined
from headrace.data.formats.columns.grouping import grouped, rows_of
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.npy_arrays import NPY_FAILURES, npy_from
from headrace.data.formats.tar.shard_files import Run, TarFiles
from headrace.data.formats.tar.shard_index import TarIndex
from headrace.data.formats.unreadable import fix_of, unreadable
from headrace.storage.fetching.ranges import ByteRange
from headrace.telemetry.progress import bytes_bar

LOGGER = logging.getLogger("headrace")

KEY = "__key__"
RUN = 256
"""Samples that are read at a time when nobody says how many."""

LARGE = 1e9
"""Bytes from which on a log message says that shards are fetched whole to be counted."""

BAR_AFTER = 1.0
"""Seconds behind which a bar is shown."""

Empty = Callable[[int], Array]


def new_bytes(count: int) -> Array:
    """Returns uninitialised memory, uint8 [count]."""
    return np.empty(count, np.uint8)


class TarReader:
    """Samples of shards. The headers of a shard are read when a sample of it, or the length, is asked for."""

    format = "webdataset"

    def __init__(self, path: str, files: TarFiles, schema: Schema, endings: Mapping[str, str]) -> None:
        self.place = path
        self.schema = schema
        self.files = files
        # The endings of files are found in small letters; see `TarIndex`.
        self._endings = {name: ending.lower() for name, ending in endings.items()}
        self._starts: Handle[Keys] = Handle()

    def __len__(self) -> int:
        return int(self._starts.get(self._count)[-1])

    def _count(self) -> Keys:
        """Returns the number of the first sample of each shard, and behind them the number of all samples."""
        numbers = range(len(self.files.names))
        # Bytes of the shards that must be fetched whole, since their headers lie between the samples.
        sizes = [sum(part.size for part in self.files.whole_ranges(number)) for number in numbers]
        counts = []
        with contextlib.ExitStack() as showing:
            report = None
            if sum(sizes):
                report = showing.enter_context(self._fetching_bar(sizes))
            for number in numbers:
                index = self.files.index(number)
                counts.append(index.count)
                if index.count == 0 and index.without_ending:
                    told = "%s: no file of this shard is part of a sample, since names have no ending, such as %s"
                    LOGGER.warning(told, self.files.names[number], index.first_without_ending)
                if report is not None:
                    report(sizes[number])

        return np.cumsum([0, *counts])

    def _fetching_bar(self, sizes: Sequence[int]) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        total = sum(sizes)
        count = sum(1 for size in sizes if size)
        if total >= LARGE:
            LOGGER.warning(
                "%s: %d shards have no index and are fetched whole to count their samples, %.1f GB. `headrace pack` "
                "makes shards with an index; a stream needs none.",
                self.place,
                count,
                total / 1e9,
            )
        return bytes_bar(f"counting the samples of {count:,} shards without an index", total, after=BAR_AFTER)

    def column(self, name: str) -> Column | None:
        return None

    def blocks(self) -> Sequence[range]:
        starts = self._starts.get(self._count).tolist()
        runs = []
        for start, stop in itertools.pairwise(starts):
            for first in range(start, stop, RUN):
                runs.append(range(first, min(first + RUN, stop)))

        return runs

    def fetch(self, keys: Keys, names: Sequence[str]) -> Block:
        return self._fetch(grouped(keys, self._starts.get(self._count)), len(keys), self.schema.only(names), new_bytes)

    def shard_count(self) -> int:
        return len(self.files.names)

    def shard_length(self, number: int) -> int:
        return self.files.index(number).count

    def run_length(self) -> int:
        return RUN

    def fetch_pieces(self, pieces: Sequence[tuple[int, Keys]], names: Sequence[str], empty: Empty) -> Block:
        groups = []
        count = 0
        for number, keys in pieces:
            groups.append((number, keys, np.arange(count, count + len(keys))))
            count += len(keys)

        # Indices would pile up, of thousands of shards in the end: those of earlier ones may go.
        self.files.stream(pieces[0][0])
        return self._fetch(groups, count, self.schema.only(names), empty)

    def _fetch(self, groups: Sequence[tuple[int, Keys, Keys]], count: int, schema: Schema, empty: Empty) -> Block:
        """Reads the samples of `groups`, each (shard, keys within it, positions in the result), into one buffer."""
        wanted = _with_files(schema)
        starts, sizes, runs = self._locate(groups, count, wanted)
        buffer = empty(sum(stop - start for _, start, stop in runs))
        self.files.read(runs, buffer)
        buffer = self._filled(groups, wanted, buffer, starts, sizes)
        columns: dict[str, Column] = {}
        origin = SampleOrigin(self._place_of, _places_of(groups, count))
        for row, field in enumerate(wanted):
            columns[field.name] = self._column(field, origin, buffer, starts[row], sizes[row])

        if KEY in schema.names:
            columns[KEY] = self._keys(groups, count)
        return Block(schema, columns, origin)

    def _filled(
        self,
        groups: Sequence[tuple[int, Keys, Keys]],
        wanted: Sequence[Field],
        buffer: Array,
        starts: Array,
        sizes: Array,
    ) -> Array:
        """Returns what was read, and behind it the whole of each file whose holes are not stored.

        starts, sizes: int64 [fields, samples], which are changed for these.
        """
        parts = [buffer]
        total = len(buffer)
        for number, keys, positions in groups:
            index = self.files.index(number)
            if not index.holes:
                continue

            for row, field in enumerate(wanted):
                column = self._place(index, number, field)
                for key, position in zip(keys.tolist(), positions.tolist(), strict=True):
                    holes = index.holes.get((key, column))
                    if holes is None:
                        continue
                    start = starts[row, position]
                    parts.append(holes.filled(buffer[start : start + sizes[row, position]]))
                    starts[row, position] = total
                    sizes[row, position] = holes.size
                    total += holes.size

        if len(parts) == 1:
            return buffer
        return np.concatenate(parts)

    def path_of_sample(self, key: int) -> str:
        starts = self._starts.get(self._count)
        number = int(np.searchsorted(starts, key, side="right")) - 1
        name = name_of_sample(self.files.index(number), key - int(starts[number]))
        return f"{self.files.names[number]}, sample {name}"

    def _place_of(self, key: Any, column: str) -> str:
        """Returns shard and file of a sample. key: the number of the shard, and of the sample in it."""
        number, sample = key.tolist()
        shard = self.files.names[number]
        index = self.files.index(number)
        if column not in self._endings:
            return f"{shard}, sample {name_of_sample(index, sample)}"
        return place_of_file(shard, index, sample, self._endings[column])

    def byte_ranges(self, keys: Keys, names: Sequence[str]) -> list[ByteRange]:
        wanted = _with_files(self.schema.only(names))
        runs = self._locate(grouped(keys, self._starts.get(self._count)), len(keys), wanted)[2]
        return self.files.ranges(runs)

    def shard_ranges(self, number: int, names: Sequence[str]) -> list[ByteRange]:
        whole = self.files.whole_ranges(number)
        if whole:
            return whole

        count = self.files.index(number).count
        keys = np.arange(count)
        runs = self._locate([(number, keys, keys)], count, _with_files(self.schema.only(names)))[2]
        return self.files.ranges(runs)

    def _locate(
        self, groups: Sequence[tuple[int, Keys, Keys]], count: int, wanted: Sequence[Field]
    ) -> tuple[Array, Array, list[Run]]:
        """Returns which runs of bytes are to be read, and where each file begins in them, one behind the other.

        The second and third are int64 [fields, samples]: starts and sizes.
        """
        if len(groups) == 1 and len(wanted) == 1:
            located = self._locate_neighbours(groups[0], wanted[0])
            if located is not None:
                return located

        starts = np.zeros((len(wanted), count), np.int64)
        sizes = np.zeros((len(wanted), count), np.int64)
        runs: list[Run] = []
        total = 0
        for number, keys, positions in groups:
            index = self.files.index(number)
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
                for start, stop, members in _runs(first, last, self.files.gap):
                    starts[:, positions[members]] += total - start
                    runs.append((number, start, stop))
                    total += stop - start

        return starts, sizes, runs

    def _locate_neighbours(self, group: tuple[int, Keys, Keys], field: Field) -> tuple[Array, Array, list[Run]] | None:
        """The same for samples that follow each other in one shard, of which one file each is wanted, as in a stream.

        None if they do not, or lack the file: the long way finds out more.
        """
        number, keys, _ = group
        index = self.files.index(number)
        column = self._place(index, number, field)
        if column < 0 or len(keys) == 0:
            return None

        starts = index.starts[keys, column]
        sizes = index.sizes[keys, column]
        between = starts[1:] - starts[:-1] - sizes[:-1]
        if sizes.min() < 0 or between.min(initial=0) < 0 or between.max(initial=0) > self.files.gap:
            return None

        first = int(starts[0])
        last = int(starts[-1]) + int(sizes[-1])
        return (starts - first)[None], sizes[None], [(number, first, last)]

    def _keys(self, groups: Sequence[tuple[int, Keys, Keys]], count: int) -> Ragged:
        parts: list[Column] = []
        for number, keys, _ in groups:
            parts.append(_names_of(self.files.index(number), keys))

        if len(parts) == 1:
            return parts[0]  # type: ignore[return-value]

        return joined(Field(KEY, "text"), parts).take(rows_of(groups, count))  # type: ignore[return-value]

    def _place(self, index: TarIndex, number: int, field: Field) -> int:
        ending = self._endings[field.name]
        if ending not in index.endings:
            if index.count == 0:
                return -1
            raise self._missing(number, index, 0, ending)

        return index.endings.index(ending)

    def _missing(self, number: int, index: TarIndex, sample: int, ending: str) -> FormatError:
        found = f"no {name_of_sample(index, sample)}.{ending}"
        fix = "leave the column out with columns=, or make the shard again"
        expected = "the same files for each sample"
        return FormatError.about(
            "a sample lacks a file", place=self.files.names[number], found=found, expected=expected, fix=fix
        )

    def _column(self, field: Field, origin: SampleOrigin, data: Array, starts: Array, sizes: Array) -> Column:
        ending = self._endings[field.name]
        plain = field.kind in ("bytes", "text")
        if plain:
            return Ragged(data, None, starts, starts + sizes)

        values = []
        for key, start, size in zip(origin.keys, starts.tolist(), sizes.tolist(), strict=True):
            place = functools.partial(self._place_of, key, field.name)
            values.append(decoded(ending, data[start : start + size].data, place))

        arrays = []
        for key, value in zip(origin.keys, values, strict=True):
            array = np.asarray(value)
            if field.kind == "fixed":
                shape = array.shape
            else:
                shape = array.shape[1:]

            if shape == field.shape and array.dtype == field.dtype:
                arrays.append(array)
                continue

            found = f"{array.dtype.name} {list(array.shape)}"
            try:
                if shape == field.shape:
                    arrays.append(exactly(array, field.dtype))
                    continue
            except ValueError as error:
                found = f"{error}, {list(array.shape)}"

            what = f"column {field.name!r} of a sample differs"
            fix = "leave the column out with columns=, or make the shard again"
            place_of_value = self._place_of(key, field.name)
            raise FormatError.about(what, place=place_of_value, found=found, expected=str(field), fix=fix)

        return column_from(field, arrays)


def _with_files(schema: Schema) -> list[Field]:
    """Returns the columns that are files of a shard: all but the name of the sample."""
    return [field for field in schema if field.name != KEY]


def _runs(starts: Array, stops: Array, gap: int) -> list[tuple[int, int, Array]]:
    """Groups samples into runs of bytes to read: (start, stop, samples), with gaps up to `gap` bytes read along."""
    order = np.argsort(starts, kind="stable")
    firsts = starts[order]
    # The furthest end so far, as an earlier sample may reach further than the one before this.
    ends = np.maximum.accumulate(stops[order])
    edges = [0, *(np.flatnonzero(firsts[1:] - ends[:-1] > gap) + 1).tolist(), len(order)]
    runs = []
    for a, b in itertools.pairwise(edges):
        if b > a:
            runs.append((int(firsts[a]), int(ends[b - 1]), order[a:b]))

    return runs


def _places_of(groups: Sequence[tuple[int, Keys, Keys]], count: int) -> Keys:
    """Returns int64 [samples, 2]: the number of its shard, and its number in the shard, of each sample."""
    places = np.zeros((count, 2), np.int64)
    for number, keys, positions in groups:
        places[positions, 0] = number
        places[positions, 1] = keys

    return places


def _names_of(index: TarIndex, keys: Keys) -> Ragged:
    """Returns the names of samples end to end, and from 0 on."""
    if len(keys) and int(keys[-1]) - int(keys[0]) == len(keys) - 1 and bool((keys[1:] > keys[:-1]).all()):
        ends = index.name_ends[int(keys[0]) : int(keys[-1]) + 2]
        first = int(ends[0])
        return Ragged(index.names[first : int(ends[-1])].copy(), ends - first)

    return Ragged(index.names, index.name_ends).take(keys)


def name_of_sample(index: TarIndex, sample: int) -> str:
    """Returns the name that the files of a sample share, as it can be printed."""
    return index.names[index.name_ends[sample] : index.name_ends[sample + 1]].tobytes().decode("utf-8", "replace")


def place_of_file(shard: str, index: TarIndex, sample: int, ending: str) -> str:
    """Returns how errors name a file of a shard."""
    return f"{shard}, file {name_of_sample(index, sample)}.{ending}"


def decoded(ending: str, data: bytes | memoryview, place: Callable[[], str]) -> Any:
    """Returns what a file holds, by its ending. place: returns how errors name it. Raises `FormatError`."""
    last = ending.rpartition(".")[2]
    try:
        if last == "cls":
            return np.int64(int(bytes(data)))
        if last == "npy":
            return npy_from(memoryview(data))
        if last in ("txt", "json"):
            return bytes(data).decode("utf-8", "surrogateescape")
    except NPY_FAILURES as error:
        raise unreadable(place(), "file of a tar shard", error, fix_of(error)) from error

    return bytes(data)
