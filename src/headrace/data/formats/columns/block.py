"""Some samples, column by column: plain arrays, and `Ragged` where samples differ in length. Never `dtype=object`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from headrace.core.errors import FormatError, explain
from headrace.core.ragged import Array, Column, Keys, Ragged, offsets_of, text_of
from headrace.data.formats.columns.schema import BYTE, NUMBERS, Field, Schema

FIX = "leave the column out with columns=, or save all samples with values of one kind"


class SampleOrigin(NamedTuple):
    """Where the samples of a block come from. Errors about one of them say so."""

    place_of: Callable[[Any, str], str]
    """Returns the place of a sample and a column, as a user would call it. Called with an entry of `keys`."""

    keys: Keys
    """int64 [n], or [n, numbers] where it takes several to tell a sample."""


@dataclass(frozen=True)
class NumberedIn:
    """Names samples by their numbers; see `SampleOrigin.place_of`."""

    place: str

    def __call__(self, key: Any, column: str) -> str:
        """Returns dataset, number and column."""
        return f"{self.place}, sample {int(key):,}, column {column!r}"


@dataclass(frozen=True, eq=False)
class Block:
    """Some samples, column by column. The arrays may be views of what they were read from: do not write to them.

    Attributes:
        schema: the columns, in order.
        columns: by their names: an array [n, *shape] or a `Ragged` each.
        origin: where the samples come from, for messages.

    Examples:
        >>> from headrace.types import Block, Field, Schema
        >>> schema = Schema((Field("x", dtype=np.dtype("float32")),))
        >>> block = Block(schema, {"x": np.array([0.5, 1.5], np.float32)})
        >>> len(block), float(block.row(1)["x"])
        (2, 1.5)
    """

    schema: Schema
    columns: Mapping[str, Column]
    origin: SampleOrigin | None = None

    def __reduce__(self) -> Any:
        """Leaves the origin out: it holds on to the reader."""
        return Block, (self.schema, self.columns)

    def place_of(self, index: int, column: str) -> str:
        """Returns where the value of sample number `index` comes from, for an error; the column alone if unknown."""
        if self.origin is None:
            return f"column {column!r}"
        return self.origin.place_of(self.origin.keys[index], column)

    def numbered(self, place: str, keys: Keys) -> Block:
        """Returns the block with its samples named by their numbers, unless they have better names. keys: int64 [n]."""
        if self.origin is not None:
            return self
        return replace(self, origin=SampleOrigin(NumberedIn(place), keys))

    def _origin_of(self, chosen: slice | Keys) -> SampleOrigin | None:
        if self.origin is None:
            return None
        return SampleOrigin(self.origin.place_of, self.origin.keys[chosen])

    def __len__(self) -> int:
        if self.schema.fields:
            return len(self.columns[self.schema.names[0]])
        return 0

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(column.nbytes for column in self.columns.values())

    def row(self, index: int) -> dict[str, Any]:
        """Gives one sample.

        Args:
            index: its number in the block.

        Returns:
            A dict of arrays (views), NumPy scalars, bytes and strings.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x", dtype=np.dtype("int64")),))
            >>> int(headrace.types.Block(schema, {"x": np.array([3, 4])}).row(1)["x"])
            4
        """
        # Runs once for each sample of a batch; a loop with an assignment takes longer.
        return {field.name: value_of(field, self.columns[field.name], index) for field in self.schema}

    def rows(self, start: int, stop: int) -> Block:
        """Gives neighbouring samples, without a copy.

        Args:
            start: number of the first.
            stop: number behind the last.

        Returns:
            A block of views.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x", dtype=np.dtype("int64")),))
            >>> headrace.types.Block(schema, {"x": np.array([3, 4, 5])}).rows(1, 3).columns
            {'x': array([4, 5])}
        """
        parts: dict[str, Column] = {}
        for name, column in self.columns.items():
            if isinstance(column, Ragged):
                parts[name] = column.rows(start, stop)
            else:
                parts[name] = column[start:stop]

        return Block(self.schema, parts, self._origin_of(slice(start, stop)))

    def take(self, keys: Keys) -> Block:
        """Copies some samples.

        Args:
            keys: their numbers, in the order wanted.

        Returns:
            A block with memory of its own.

        Examples:
            >>> schema = headrace.types.Schema((headrace.types.Field("x", dtype=np.dtype("int64")),))
            >>> headrace.types.Block(schema, {"x": np.array([3, 4, 5])}).take(np.array([2, 0])).columns
            {'x': array([5, 3])}
        """
        taken: dict[str, Column] = {}
        for name, column in self.columns.items():
            if isinstance(column, Ragged):
                taken[name] = column.take(keys)
            else:
                taken[name] = column[keys]

        return Block(self.schema, taken, self._origin_of(keys))

    def only(self, schema: Schema) -> Block:
        """The columns of another schema, whose names are among ours."""
        return Block(schema, {name: self.columns[name] for name in schema.names}, self.origin)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self)):
            yield self.row(index)


def value_of(field: Field, column: Column, index: int, place: object = None) -> Any:
    """Sample number `index` of a column: an array (a view) or NumPy scalar, bytes, or a string.

    place: as for `text_of`.
    """
    value = column[index]
    if field.kind == "bytes":
        return value.tobytes()
    if field.kind == "text":
        return text_of(value, place)
    return value


def concatenated(schema: Schema, blocks: Sequence[Block]) -> Block:
    """Returns the samples of all blocks, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    columns: dict[str, Column] = {}
    for field in schema:
        parts = [block.columns[field.name] for block in blocks]
        columns[field.name] = joined(field, parts)

    return Block(schema, columns, _common_origin(blocks))


def _common_origin(blocks: Sequence[Block]) -> SampleOrigin | None:
    """Returns the origin of the samples of all blocks; None if they are not named by the same reader."""
    keys = []
    place_of = None
    for block in blocks:
        if block.origin is None or place_of not in (None, block.origin.place_of):
            return None
        place_of = block.origin.place_of
        keys.append(block.origin.keys)

    if place_of is None:
        return None
    return SampleOrigin(place_of, np.concatenate(keys))


def joined(field: Field, columns: Sequence[Any]) -> Column:
    """Returns columns of one field end to end."""
    if field.kind == "fixed":
        if columns:
            return np.concatenate(columns)
        return np.empty((0, *field.shape), field.dtype)

    if not columns:
        return Ragged(np.empty((0, *field.shape), field.dtype), np.zeros(1, np.int64))

    values: list[Array] = []
    offsets: list[Array] = [np.zeros(1, np.int64)]
    total = 0
    for column in columns:
        packed, edges = column.packed()
        values.append(packed)
        # The first edge of a column is the last one of the column before it.
        offsets.append(edges[1:] + total)
        total += int(edges[-1])

    return Ragged(np.concatenate(values), np.concatenate(offsets))


def ragged_from(field: Field, values: Sequence[Any]) -> Ragged:
    """Returns a column of bytes, strings or arrays."""
    if field.kind == "text":
        # Bytes that are no UTF-8, as names of files may hold, came in as surrogates, and go out as they were.
        values = [value.encode("utf-8", "surrogateescape") for value in values]

    lengths = np.fromiter(map(len, values), np.int64, len(values))
    offsets = offsets_of(lengths)
    if field.kind in ("bytes", "text"):
        return Ragged(np.frombuffer(b"".join(values), np.uint8), offsets)

    # The empty array in front gives the column its type and shape where there are no values.
    parts = [np.empty((0, *field.shape), field.dtype)]
    for value in values:
        parts.append(exactly(np.asarray(value), field.dtype))

    return Ragged(np.concatenate(parts), offsets)


def column_from(field: Field, values: Sequence[Any]) -> Column:
    """Returns a column of samples as `value_of` returns them. Raises `FormatError` if one is of another kind."""
    try:
        if field.kind != "fixed":
            return ragged_from(field, values)
        column = np.empty((len(values), *field.shape), field.dtype)
        for index, value in enumerate(values):
            array = np.asarray(value)
            if array.dtype != field.dtype:
                array = exactly(array, field.dtype)
            if array.shape != field.shape:
                raise ValueError(f"shape {array.shape} in sample {index}")
            column[index] = array
        return column
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        found = f"{type(error).__name__}: {error}"
        message = explain("a sample does not fit its column", place=f"column {field.name!r}", found=found)
        raise FormatError(f"{message}\n  expected: {field}") from error


def exactly(values: Array, dtype: np.dtype[Any]) -> Array:
    """Returns numbers as another type of their kind. Raises `ValueError` if one would become another number."""
    if values.dtype == dtype:
        return values

    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype)
        if values.size == 0:
            return converted
        if _kind(values.dtype) != _kind(dtype):
            raise ValueError(f"{values.dtype} where {dtype} was found before")
        if np.can_cast(values.dtype, dtype):
            return converted

        back = converted.astype(values.dtype)
        same = (back == values) & ((converted < 0) == (values < 0)) | (values != values)

    if not same.all():
        lost = values[~same].flat[0]
        raise ValueError(f"{values.dtype} where {dtype} was found before, which does not hold {lost}")
    return converted


def widest(types: Iterable[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Returns the type that holds all numbers of all these types; None if there is none. types: at least one."""
    found = list(dict.fromkeys(types))
    if len(set(map(_kind, found))) > 1:
        return None

    wide = np.result_type(*found)
    # NumPy makes floating point of signed and unsigned numbers of 64 bits.
    if _kind(wide) != _kind(found[0]):
        return None
    return wide


def _kind(dtype: np.dtype[Any]) -> str:
    """Returns the kind of numbers: those of one kind may be widened."""
    if dtype.kind == "u":
        return "i"
    return dtype.kind


def block_from(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Block:
    """Returns a block of samples given as dicts."""
    columns: dict[str, Column] = {}
    for field in schema:
        values = list(map(itemgetter(field.name), rows))
        columns[field.name] = column_from(field, values)

    return Block(schema, columns)


def as_numbers(array: Array, place: object) -> Array:
    """Returns an array in the machine's byte order. Raises `FormatError` if its elements are not numbers."""
    if array.dtype.isnative:
        plain = array
    else:
        plain = array.astype(array.dtype.newbyteorder("="))

    if plain.dtype not in NUMBERS:
        raise FormatError.about(
            "an array holds what is not a number",
            place=place,
            found=f"dtype {array.dtype}",
            expected="booleans, whole numbers, or floating point of 16, 32 or 64 bits",
            fix="store it as numbers, text or bytes",
        )

    return plain


def field_of(name: str, values: Sequence[Any], place: object) -> Field:
    """Guesses the field of a column from some of its samples. Raises `FormatError` if they are of no known kind."""
    if _all_are(values, str):
        return Field(name, "text")
    if _all_are(values, (bytes, bytearray, memoryview)):
        return Field(name, "bytes")

    types = set()
    kinds = set()
    shapes = set()
    described = set()
    for value in _numbers_in(name, values, place):
        array = as_numbers(np.asarray(value), f"{place}, column {name!r}")
        types.add(array.dtype)
        kinds.add((array.ndim, array.shape[1:]))
        shapes.add(array.shape)
        described.add(f"{array.dtype} of {array.ndim} dimensions")

    wide = widest(types)
    ((dimensions, shape), *others) = kinds
    if wide is not None and len(shapes) == 1:
        return Field(name, "fixed", wide, shapes.pop())
    if wide is not None and not others and dimensions > 0:
        return Field(name, "ragged", wide, shape)

    found = ", ".join(sorted(described))
    expected = f"samples like the first, {np.asarray(values[0]).dtype} of shape {np.shape(values[0])}"
    what = f"samples of column {name!r} differ too much"
    raise FormatError.about(what, place=place, found=found, expected=expected, fix=FIX)


def _all_are(values: Iterable[object], kinds: type | tuple[type, ...]) -> bool:
    return all(isinstance(value, kinds) for value in values)


def _numbers_in(name: str, values: Iterable[Any], place: object) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (bool, int, float, np.generic, np.ndarray, list, tuple)):
            yield value
        elif hasattr(value, "detach"):
            yield array_of(value, name, place)
        else:
            found = type(value).__name__
            expected = "a number, an array, a tensor, a string or bytes"
            what = f"column {name!r} cannot be read"
            raise FormatError.about(what, place=place, found=found, expected=expected, fix=FIX)


def array_of(tensor: Any, name: str, place: object) -> Array:
    """Returns a tensor's values. Raises `FormatError` for sparse ones, and types that NumPy has not (bfloat16)."""
    try:
        values: Array = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        found = f"a tensor of {tensor.dtype}, {tensor.layout}"
        what = f"column {name!r} cannot be read"
        fix = "save it as NumPy could have it: .to_dense(), .float(); or leave it out with columns="
        expected = "a dense tensor of numbers that NumPy has"
        raise FormatError.about(what, place=place, found=found, expected=expected, fix=fix) from error

    return values


def bytes_of(values: Array) -> Array:
    """Returns an array as uint8 [total bytes], without a copy where it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(BYTE)
