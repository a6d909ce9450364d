"""Answers of a database as columns of samples; what cannot be a sample is told of that sample, and not of its page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import FormatError, SampleError
from headrace.data.formats.arrow.columns import from_arrow
from headrace.data.formats.arrow.exact_numbers import is_time, times
from headrace.data.formats.arrow.field_types import field_from
from headrace.data.formats.columns import Array, Block, Column, Field, Keys, SampleOrigin, Schema, concatenated
from headrace.sources.sql.answers import QueryResult
from headrace.sources.sql.relation import SelectedColumn

WHOLE_ROW = ""
"""In the place of a column's name: no column is at fault, but the row."""


@dataclass(frozen=True)
class RowFault:
    """Rows that are no samples, and why."""

    rows: Keys
    """int64 [k], ascending: their places in the answer."""
    column: str
    found: str
    expected: str
    fix: str


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of an answer. Those with a fault hold nothing of use."""

    block: Block
    faults: tuple[RowFault, ...] = ()

    def __len__(self) -> int:
        return len(self.block)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns take."""
        return self.block.nbytes

    def run(self, start: int, stop: int) -> Block:
        """Returns rows start .. stop-1 without a copy. Raises `SampleError` if one has a fault."""
        for fault in self.faults:
            inside = fault.rows[(fault.rows >= start) & (fault.rows < stop)]
            self._raise_of(fault, inside)
        return self.block.rows(start, stop)

    def take(self, rows: Keys) -> Block:
        """Returns copies of rows. Raises `SampleError` if one has a fault."""
        for fault in self.faults:
            self._raise_of(fault, rows[np.isin(rows, fault.rows)])
        return self.block.take(rows)

    def _raise_of(self, fault: RowFault, rows: Keys) -> None:
        if len(rows):
            place = self.block.place_of(int(rows[0]), fault.column)
            what = "a row cannot be a sample"
            raise SampleError.about(what, place=place, found=fault.found, expected=fault.expected, fix=fault.fix)


def joined_rows(schema: Schema, parts: Sequence[TableRows]) -> TableRows:
    """Returns the rows of several answers, one after the other."""
    faults = []
    first = 0
    for part in parts:
        for fault in part.faults:
            faults.append(dataclasses.replace(fault, rows=fault.rows + first))
        first += len(part)

    return TableRows(concatenated(schema, [part.block for part in parts]), tuple(faults))


def schema_of(columns: Sequence[SelectedColumn], shapes: Mapping[str, tuple[int, ...]], place: str) -> Schema:
    """Returns the schema of samples. Raises `FormatError` for a column that cannot be a part of one."""
    fields = []
    for column in columns:
        field = None
        if column.type is not None and not pa.types.is_interval(column.type):
            field = field_from(column.name, column.type)
        if field is None:
            raise _no_part(column, place)
        if column.name in shapes:
            field = Field(field.name, "fixed", field.dtype, shapes[column.name])
        fields.append(field)

    return Schema(tuple(fields))


def _no_part(column: SelectedColumn, place: str) -> FormatError:
    name = column.name
    fix = f"cast it in the query, as in cast({name} as text), or leave it out with columns="
    found = f"type {column.stored or column.type}"
    if column.type is None:
        fix = f"cast it in the query, as in cast({name} as text), so that all values have one type"
    elif pa.types.is_null(column.type):
        found = "no value in the rows that were looked at, and no declared type"
        fix = f"give it a type in the query, as in cast({name} as real), or leave it out with columns="
    elif pa.types.is_interval(column.type):
        fix = f"ask for seconds in the query, as in extract(epoch from {name}), or leave it out with columns="

    expected = "numbers, texts, bytes, dates and times, or arrays of numbers"
    where = f"{place}, column {name!r}"
    return FormatError.about(
        "a column cannot be part of a sample", place=where, found=found, expected=expected, fix=fix
    )


def rows_from(
    answer: QueryResult, schema: Schema, numbers: Keys, places: Keys | None, place_of: Callable[[int, str], str]
) -> TableRows:
    """Returns the rows of an answer that were asked for.

    numbers: of the samples, int64 [k]. places: where each stands in the answer, -1 for a row that is gone; None: they
    are all there, in this order. place_of: names a sample by its number.
    """
    table = answer.table
    faults = []
    if places is not None:
        gone = np.flatnonzero(places < 0)
        if len(table) == 0 and len(gone):
            table = pa.Table.from_arrays([pa.nulls(1, kind.type) for kind in table.schema], schema=table.schema)
        table = table.take(pa.array(np.maximum(places, 0)))
        if len(gone):
            expected = "the row that was there when the data were opened"
            fix = "open the data again, or keep the table as it is while it is read"
            faults.append(
                RowFault(gone, WHOLE_ROW, "no row with this key: it was deleted, or its key changed", expected, fix)
            )

    columns = {}
    for field in schema:
        unfit = answer.unfit.get(field.name, {})
        columns[field.name], found = _column(field, table.column(field.name).combine_chunks(), unfit, places)
        faults += found

    block = Block(schema, columns, SampleOrigin(place_of, numbers))
    return TableRows(block, tuple(faults))


def _column(
    field: Field, array: pa.Array, unfit: Mapping[int, str], places: Keys | None
) -> tuple[Column, list[RowFault]]:
    faults = []
    empty = (
        np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) if array.null_count else np.empty(0, np.int64)
    )
    for row, found in unfit.items():
        at = np.array([row])
        if places is not None:
            at = np.flatnonzero(places == row)
        fix = f"fix the row, or cast {field.name} in the query"
        faults.append(RowFault(at, field.name, found, str(field), fix))
        empty = np.setdiff1d(empty, at)

    is_float = field.kind == "fixed" and not field.shape and field.dtype.kind == "f"
    if len(empty) and not is_float:
        fix = f"fill it in the query, as in coalesce({field.name}, ...), or leave such rows out"
        faults.append(RowFault(empty, field.name, "null", str(field), fix))

    if field.shape and pa.types.is_binary(array.type):
        column, wrong = _sent(field, array)
        return column, [*faults, *wrong]
    if field.kind == "ragged" or field.shape:
        column, wrong = _lists(field, array)
        return column, [*faults, *wrong]
    return from_arrow(field, _filled(field, array), f"column {field.name!r}"), faults


def _filled(field: Field, array: pa.Array) -> pa.Array:
    """Returns an array with something in its empty places, where NaN cannot stand there."""
    if not array.null_count:
        return array
    if field.kind == "text":
        return pc.fill_null(array, "")
    if field.kind == "bytes":
        return pc.fill_null(array, b"")
    if field.dtype.kind == "f":
        return array

    if is_time(array.type):
        array = times(array)
    if pa.types.is_boolean(array.type):
        return pc.fill_null(array, False)
    return pc.fill_null(array, 0)


def _lists(field: Field, array: pa.Array) -> tuple[Column, list[RowFault]]:
    """Returns arrays as a column, and those that have holes or another shape."""
    faults = []
    entries = array.flatten()
    if entries.null_count and field.dtype.kind != "f":
        holes = pc.unique(pc.filter(pc.list_parent_indices(array), entries.is_null())).to_numpy()
        fix = f"fill them in the query, as in array_replace({field.name}, null, 0)"
        faults.append(
            RowFault(holes.astype(np.int64), field.name, "an array with empty places (null)", str(field), fix)
        )
        entries = pc.fill_null(entries, pa.scalar(0).cast(entries.type))

    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if field.kind == "ragged":
        whole = pa.LargeListArray.from_arrays(pa.array(offsets), entries)
        return from_arrow(field, whole, f"column {field.name!r}"), faults

    size = math.prod(field.shape)
    values = _numbers(field, entries)
    wrong = np.flatnonzero(lengths != size)
    if not len(wrong):
        return values.reshape(len(array), *field.shape), faults

    column = np.zeros((len(array), size), field.dtype)
    right = lengths == size
    column[right] = values[np.repeat(right, lengths)].reshape(-1, size)
    present = wrong[array.is_valid().to_numpy(zero_copy_only=False)[wrong]]
    if len(present):
        found = f"an array of {int(lengths[present[0]])} numbers"
        fix = "open the data again: the array was changed since"
        faults.append(RowFault(present, field.name, found, str(field), fix))
    return column.reshape(len(array), *field.shape), faults


def _sent(field: Field, array: pa.Array) -> tuple[Column, list[RowFault]]:
    """Returns arrays that came as PostgreSQL sends them, and those that have holes or another shape.

    Source: `array_send` of PostgreSQL: three words (dimensions, whether there are empty places, the type), two words
    for each dimension (length and lower bound), and for each element its length in a word, and itself; big end first.
    """
    count = math.prod(field.shape)
    head = 12 + 8 * len(field.shape)
    step = 4 + field.dtype.itemsize
    width = head + count * step
    _, edges, data = array.buffers()
    offsets = np.frombuffer(edges, np.int32, len(array) + 1, 4 * array.offset)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    right = np.diff(offsets) == width
    if right.all():
        rows = raw[offsets[0] : offsets[-1]].reshape(-1, width)
    else:
        rows = np.zeros((len(array), width), np.uint8)
        rows[right] = raw[offsets[:-1][right, None] + np.arange(width)]

    words = rows[:, :head].copy().view(">i4")
    right &= (words[:, 0] == len(field.shape)) & (words[:, 1] == 0) & (words[:, 3::2] == field.shape).all(axis=1)
    parts = rows[:, head:].reshape(len(rows), count, step)[:, :, 4:]
    numbers = np.ascontiguousarray(parts).view(field.dtype.newbyteorder(">")).astype(field.dtype)
    column = numbers.reshape(len(rows), *field.shape)

    wrong = np.flatnonzero(~right & array.is_valid().to_numpy(zero_copy_only=False))
    if not len(wrong):
        return column, []
    found = "an array with empty places (null), or of another length"
    fix = f"open the data again if the array was changed; else fill it: array_replace({field.name}, null, 0)"
    return column, [RowFault(wrong, field.name, found, str(field), fix)]


def _numbers(field: Field, entries: pa.Array) -> Array:
    numbers: Array = np.asarray(from_arrow(Field(field.name, "fixed", field.dtype), entries, f"column {field.name!r}"))
    return numbers
