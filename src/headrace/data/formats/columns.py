"""Columns in memory: plain arrays, and arrays of samples that differ in length. Never `dtype=object`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.errors import FormatError, UsageError, explain
from headrace.data.formats.schema import BYTE, NUMBERS, Field, Schema

Array = npt.NDArray[Any]
Keys = npt.NDArray[np.int64]

LONG = 2048
"""Bytes of a sample from which on one copy per sample is quicker than one index for each element."""


class Ragged:
    """Samples of different lengths in one array: number i is `values[starts[i]:stops[i]]`.

    values: [total, *shape]; starts, stops: whole numbers [n]. Made from offsets [n + 1], number i is
    `values[offsets[i]:offsets[i + 1]]`: end to end, if not from 0 on. A batched step of a staged dataset gets them
    end to end and from 0 on, in memory of its own, which it may change.
    """

    __slots__ = ("_offsets", "place", "starts", "stops", "values")

    def __init__(
        self, values: Array, offsets: Array | None = None, starts: Any = None, stops: Any = None, place: object = None
    ) -> None:
        """place: where the samples are stored, for messages."""
        self.values = values
        self.place = place
        self._offsets = offsets
        if offsets is None:
            self.starts: Array = starts
        else:
            self.starts = offsets[:-1]

        if offsets is None:
            self.stops: Array = stops
        else:
            self.stops = offsets[1:]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Array:
        """Sample number `index` (0 .. n-1), without a copy."""
        return self.values[int(self.starts[index]) : int(self.stops[index])]

    @property
    def offsets(self) -> Array:
        """Where samples begin, and the last one ends: whole numbers [n + 1]. Raises `UsageError` if there are gaps."""
        if self._offsets is None:
            if len(self) and not (self.starts[1:] == self.stops[:-1]).all():
                cure = "take starts and stops, or Ragged(*ragged.packed())"
                raise UsageError(explain("these samples do not lie end to end", found="gaps between them", cure=cure))

            if len(self):
                self._offsets = np.append(self.starts, self.stops[-1:])
            else:
                self._offsets = np.zeros(1, np.int64)

        return self._offsets

    @property
    def lengths(self) -> Array:
        """How long each sample is: whole numbers [n]."""
        return self.stops - self.starts

    def with_values(self, values: Array) -> Ragged:
        """Returns other values at the same offsets: [total, *any shape], as many as there are. Raises `UsageError`."""
        if len(values) != len(self.values):
            found = f"{len(values):,}"
            expected = f"{len(self.values):,} values, one for each that is replaced"
            raise UsageError(explain("these values do not fit the offsets", found=found, expected=expected))
        return Ragged(values, self._offsets, self.starts, self.stops, self.place)

    def rows(self, start: int, stop: int) -> Ragged:
        """Samples start .. stop-1, without a copy."""
        return Ragged(self.values, None, self.starts[start:stop], self.stops[start:stop], self.place)

    def pieces(self, keys: Keys) -> tuple[Keys, Keys]:
        """Returns starts and lengths of samples. Raises `FormatError` if they make no sense: data may be damaged."""
        starts = self.starts[keys].astype(np.int64)
        lengths = self.stops[keys].astype(np.int64) - starts
        if len(keys) and (
            int(lengths.min()) < 0 or int(starts.min()) < 0 or int((starts + lengths).max()) > len(self.values)
        ):
            found = "offsets that descend, or lead outside of the values"
            cure = "restore the file, or pack the data again"
            what = "stored offsets are damaged"
            expected = "ascending offsets"
            raise FormatError(explain(what, place=self.place, found=found, expected=expected, cure=cure))

        return starts, lengths

    def take(self, keys: Keys) -> Ragged:
        """Copies the samples of these keys, in their order, end to end."""
        starts, lengths = self.pieces(keys)
        offsets = offsets_of(lengths)
        values = np.empty((int(offsets[-1]), *self.values.shape[1:]), self.values.dtype)
        copy_pieces(self.values, starts, lengths, values, offsets)
        return Ragged(values, offsets)

    def packed(self) -> tuple[Array, Keys]:
        """Returns the samples end to end, and their offsets from 0 on; without a copy where they lie so already."""
        if len(self) == 0:
            return self.values[:0], np.zeros(1, np.int64)
        if not (self.starts[1:] == self.stops[:-1]).all():
            taken = self.take(np.arange(len(self)))
            return taken.values, np.append(taken.starts, taken.stops[-1:])

        first = int(self.starts[0])
        last = int(self.stops[-1])
        if not 0 <= first <= last <= len(self.values):
            self.pieces(np.arange(len(self)))

        offsets = np.empty(len(self) + 1, np.int64)
        offsets[:-1] = self.starts
        offsets[-1] = last
        return self.values[first:last], offsets - first

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return self.values.nbytes + self.starts.nbytes + self.stops.nbytes

    def __reduce__(self) -> Any:
        return Ragged, (self.values, None, self.starts, self.stops, self.place)


class Loose(Ragged):
    """Samples that are arrays of their own so far; put end to end once somebody asks for `values`."""

    __slots__ = ("_joined", "arrays")

    def __init__(self, arrays: list[Array], lengths: Keys) -> None:
        """arrays: [lengths[i], *shape] each, of one type, at least one; not copied before `values` is asked for.

        From then on `arrays` is None: whoever got the values may change them.
        """
        super().__init__(arrays[0][:0], offsets_of(lengths))
        self.arrays: list[Array] | None = arrays

    @property
    def values(self) -> Array:
        """See `Ragged`."""
        if self.arrays is not None:
            self.values = np.concatenate(self.arrays)
            self.arrays = None
        return self._joined

    @values.setter
    def values(self, values: Array) -> None:
        self._joined = values


def offsets_of(lengths: Keys) -> Keys:
    """Returns where samples of these lengths begin when they lie end to end, and where the last one ends [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


Column = Array | Ragged


def copy_pieces(source: Array, starts: Keys, lengths: Keys, out: Array, at: Array) -> None:
    """Copies pieces `source[starts[i]:starts[i] + lengths[i]]` to `out[at[i]:...]`."""
    total = int(lengths.sum())
    if total == 0:
        return

    row = max(source.itemsize * int(np.prod(source.shape[1:])), 1)
    if total * row < LONG * len(lengths):
        steps = np.repeat(starts - np.asarray(at[: len(lengths)]), lengths)
        steps += np.arange(total)
        np.take(source, steps, 0, out=out[:total], mode="clip")
        return

    for start, length, to in zip(starts.tolist(), lengths.tolist(), at[: len(lengths)].tolist(), strict=True):
        out[to : to + length] = source[start : start + length]


@dataclass(frozen=True, eq=False)
class Block:
    """Some samples, column by column. The arrays may be views of what they were read from: do not write to them."""

    schema: Schema
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        if self.schema.fields:
            return len(self.columns[self.schema.names[0]])
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(column.nbytes for column in self.columns.values())

    def row(self, index: int) -> dict[str, Any]:
        """Sample number `index`: a dict of arrays (views), NumPy scalars, bytes and strings."""
        return {field.name: value_of(field, self.columns[field.name], index) for field in self.schema}

    def rows(self, start: int, stop: int) -> Block:
        """Samples start .. stop-1, without a copy."""
        parts = {
            name: column.rows(start, stop) if isinstance(column, Ragged) else column[start:stop]
            for name, column in self.columns.items()
        }
        return Block(self.schema, parts)

    def take(self, keys: Keys) -> Block:
        """Copies the samples of these keys, in their order."""
        taken = {
            name: column.take(keys) if isinstance(column, Ragged) else column[keys]
            for name, column in self.columns.items()
        }
        return Block(self.schema, taken)

    def only(self, schema: Schema) -> Block:
        """The columns of another schema, whose names are among ours."""
        return Block(schema, {name: self.columns[name] for name in schema.names})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(index) for index in range(len(self)))


def value_of(field: Field, column: Column, index: int) -> Any:
    """Sample number `index` of a column: an array (a view) or NumPy scalar, bytes, or a string."""
    value = column[index]
    if field.kind == "bytes":
        return value.tobytes()
    if field.kind == "text":
        return value.tobytes().decode("utf-8", "surrogateescape")
    return value


def concatenated(schema: Schema, blocks: Sequence[Block]) -> Block:
    """Returns the samples of all blocks, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return Block(schema, {field.name: joined(field, [b.columns[field.name] for b in blocks]) for field in schema})


def joined(field: Field, columns: Sequence[Any]) -> Column:
    """Returns columns of one field end to end."""
    if field.kind == "fixed":
        if columns:
            return np.concatenate(columns)
        return np.empty((0, *field.shape), field.dtype)

    if not columns:
        return Ragged(np.empty((0, *field.shape), field.dtype), np.zeros(1, np.int64))

    parts = [column.packed() for column in columns]
    ends = np.cumsum([0, *(offsets[-1] for _, offsets in parts)])
    moved = [offsets[:-1] + start for (_, offsets), start in zip(parts, ends, strict=False)]
    return Ragged(np.concatenate([values for values, _ in parts]), np.concatenate([*moved, ends[-1:]]))


def ragged_from(field: Field, values: Sequence[Any]) -> Ragged:
    """Returns a column of bytes, strings or arrays."""
    if field.kind == "text":
        values = [value.encode("utf-8", "surrogateescape") for value in values]

    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    if field.kind in ("bytes", "text"):
        return Ragged(np.frombuffer(b"".join(values), np.uint8), offsets)
    return Ragged(np.concatenate([np.empty((0, *field.shape), field.dtype), *values]), offsets)


def column_from(field: Field, values: Sequence[Any]) -> Column:
    """Returns a column of samples as `value_of` returns them. Raises `FormatError` if one is of another kind."""
    try:
        if field.kind != "fixed":
            return ragged_from(field, values)
        column = np.empty((len(values), *field.shape), field.dtype)
        for index, value in enumerate(values):
            if np.shape(value) != field.shape:
                raise ValueError(f"shape {np.shape(value)} in sample {index}")
            column[index] = value
        return column
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        found = f"{type(error).__name__}: {error}"
        message = explain("a sample does not fit its column", place=f"column {field.name!r}", found=found)
        raise FormatError(f"{message}\n  expected: {field}") from error


def block_from(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Block:
    """Returns a block of samples given as dicts."""
    return Block(schema, {field.name: column_from(field, [row[field.name] for row in rows]) for field in schema})


def as_numbers(array: Array, place: object) -> Array:
    """Returns an array in the machine's byte order. Raises `FormatError` if its elements are not numbers."""
    if array.dtype.isnative:
        plain = array
    else:
        plain = array.astype(array.dtype.newbyteorder("="))

    if plain.dtype not in NUMBERS:
        message = explain(
            "an array holds what is not a number",
            place=place,
            found=f"dtype {array.dtype}",
            expected="booleans, whole numbers, or floating point of 16, 32 or 64 bits",
            cure="store it as numbers, text or bytes",
        )
        raise FormatError(message)

    return plain


def field_of(name: str, values: Sequence[Any], place: object) -> Field:
    """Guesses the field of a column from some of its samples. Raises `FormatError` if they are of no known kind."""
    first = values[0]
    if all(isinstance(value, str) for value in values):
        return Field(name, "text")
    if all(isinstance(value, (bytes, bytearray, memoryview)) for value in values):
        return Field(name, "bytes")

    arrays = [as_numbers(np.asarray(value), place) for value in _numbers_in(name, values, place)]
    kinds = {(array.dtype, array.ndim, array.shape[1:]) for array in arrays}
    shapes = {array.shape for array in arrays}
    dtype = arrays[0].dtype
    if len(shapes) == 1 and len(kinds) == 1:
        return Field(name, "fixed", dtype, arrays[0].shape)
    if len(kinds) == 1 and arrays[0].ndim > 0:
        return Field(name, "ragged", dtype, arrays[0].shape[1:])

    found = ", ".join(sorted(f"{one[0]} of {one[1]} dimensions" for one in kinds))
    expected = f"samples like the first, {np.asarray(first).dtype} of shape {np.shape(first)}"
    raise FormatError(
        explain(f"samples of column {name!r} differ too much", place=place, found=found, expected=expected)
    )


def _numbers_in(name: str, values: Iterable[Any], place: object) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (bool, int, float, np.generic, np.ndarray, list, tuple)):
            yield value
        elif hasattr(value, "detach"):
            yield value.detach().cpu().numpy()
        else:
            found = type(value).__name__
            expected = "a number, an array, a tensor, a string or bytes"
            raise FormatError(explain(f"column {name!r} cannot be read", place=place, found=found, expected=expected))


def bytes_of(values: Array) -> Array:
    """Returns an array as uint8 [total bytes], without a copy where it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(BYTE)
