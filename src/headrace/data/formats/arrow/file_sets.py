"""Several Arrow or Parquet files as one dataset: columns by name, of the type that holds the values of all files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.core.errors import FormatError
from headrace.data.formats.arrow.columns import from_arrow, to_arrow
from headrace.data.formats.arrow.exact_numbers import is_time
from headrace.data.formats.arrow.field_types import KEY, field_from, schema_from
from headrace.data.formats.columns.block import widest
from headrace.data.formats.columns.schema import Field, Schema, schema_of_text

FIX = "make all of them with the same columns and types, or name columns that they share with columns="


def wanted_of(first: pa.Schema, columns: Collection[str] | None) -> Collection[str] | None:
    """Returns the wanted columns; None, which stands for all, if one of them is not there: that is told later."""
    if columns is None or not set(columns) <= set(first.names):
        return None
    return columns


def joined_schema(
    schemas: Sequence[pa.Schema], names: Sequence[str], place: object, columns: Collection[str] | None = None
) -> Schema:
    """Returns the schema of files taken together, columns in the order of the first one.

    names: of the files, as users call them. columns: those that are wanted, if not all; files may differ in others.
    Raises `FormatError` for a column that a file lacks, has besides, or has of a type that does not go with the others.
    """
    first = _with_types_of_nulls(schemas)
    schema = schema_from(first, place, columns)
    fields = {field.name: field for field in schema}
    sources = dict.fromkeys(fields, 0)
    for number, other in enumerate(schemas):
        # Nearly all files of a dataset are alike.
        if other.equals(first) and (other.metadata or {}).get(KEY) == (first.metadata or {}).get(KEY):
            continue

        own = schema_of_text((other.metadata or {}).get(KEY), names[number])
        for name, field in fields.items():
            if name not in other.names:
                raise _differ(names[number], f"no column {name!r}, which {names[0]} has")
            if other.names.count(name) > 1:
                raise _differ(names[number], f"column {name!r} {other.names.count(name)} times")

            found = _field_of(name, other, own)
            wide = _joined(field, found)
            kinds = other.field(name).type, schemas[sources[name]].field(name).type
            if pa.types.is_null(kinds[0]):
                # Without a value in it: such rows are NaN, or holes that are named when they are read.
                continue
            if wide is None or _meaning(kinds[0]) != _meaning(kinds[1]):
                found_text = f"column {name!r} of {kinds[0]} where {names[sources[name]]} has {kinds[1]}"
                raise _differ(names[number], found_text)
            if wide != field:
                fields[name] = wide
                sources[name] = number

        further = [name for name in other.names if name not in first.names and (columns is None or name in columns)]
        if further:
            raise _differ(names[number], f"column {further[0]!r}, which {names[0]} has not")

    return Schema(tuple(fields.values()))


def _with_types_of_nulls(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Returns the first schema; columns without a value there have the type that they have in another file."""
    first = schemas[0]
    for number, field in enumerate(first):
        if not pa.types.is_null(field.type):
            continue
        for other in schemas[1:]:
            at = other.get_field_index(field.name)
            if at >= 0 and not pa.types.is_null(other.field(at).type):
                first = first.set(number, other.field(at))
                break

    return first


def _field_of(name: str, arrow: pa.Schema, own: Schema | None) -> Field | None:
    """Returns the field of a column. own: what our writer noted of the file."""
    if own is not None and name in own.names:
        return own[name]
    return field_from(name, arrow.field(name).type)


def _joined(one: Field, other: Field | None) -> Field | None:
    """Returns the field that holds the values of both; None if there is none."""
    if other is None or (one.kind, one.shape) != (other.kind, other.shape):
        return None
    # The number 1 would stand for another class in each.
    if one.labels and other.labels and one.labels != other.labels:
        return None

    dtype = widest([one.dtype, other.dtype])
    if dtype is None:
        return None
    return replace(one, dtype=dtype)


def _meaning(kind: pa.DataType) -> str:
    """Returns what the whole numbers that stand for times mean; nothing for all other types."""
    types = pa.types
    if not is_time(kind):
        return ""
    if types.is_timestamp(kind):
        return f"moment {bool(kind.tz)}"
    if types.is_date(kind):
        return "days"
    return f"duration {types.is_duration(kind)}"


def _differ(place: str, found: str) -> FormatError:
    expected = "the same columns in all files, of types that one type holds"
    return FormatError.about("files differ", place=place, found=found, expected=expected, fix=FIX)


def joined_tables(tables: Sequence[pa.Table], schema: Schema, names: Sequence[str]) -> pa.Table:
    """Returns the rows of all tables: without a copy of the columns that are of one type in all of them.

    schema: what `joined_schema` returned for them.
    """
    first = tables[0]
    if all(table.schema.equals(first.schema) for table in tables):
        return pa.concat_tables(tables)

    columns = []
    for field in schema:
        parts = [table.column(field.name) for table in tables]
        if len({part.type for part in parts}) > 1:
            parts = [_as_ours(field, part, name) for part, name in zip(parts, names, strict=True)]
        chunks = []
        for part in parts:
            chunks += part.chunks
        columns.append(pa.chunked_array(chunks, parts[0].type))

    return pa.table(columns, list(schema.names))


def _as_ours(field: Field, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Returns a column as Arrow's type of its field."""
    return pa.chunked_array([to_arrow(field, from_arrow(field, column, name))])
