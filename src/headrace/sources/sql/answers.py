"""Answers of drivers that give rows: turned into Arrow columns of types that are known, or guessed from some rows."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Unfit = dict[str, dict[int, str]]
"""For each column, which rows (0 .. n-1) hold what is not of its type, and what that is in words."""


@dataclass
class QueryResult:
    """What a query gave."""

    table: pa.Table
    unfit: Unfit = field(default_factory=dict)
    """These are null in the table."""


UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""What Arrow raises for values that are not of a type."""

MOMENT = pa.timestamp("us", "UTC")

TYPES: tuple[tuple[tuple[type, ...], pa.DataType], ...] = (
    ((bool,), pa.bool_()),
    ((int,), pa.int64()),
    ((int, float, decimal.Decimal, bool), pa.float64()),
    ((str,), pa.string()),
    ((uuid.UUID,), pa.string()),
    ((dict,), pa.string()),
    ((bytes, bytearray, memoryview), pa.binary()),
    ((datetime.datetime,), pa.timestamp("us")),
    ((datetime.date,), pa.date32()),
    ((datetime.time,), pa.time64("us")),
    ((datetime.timedelta,), pa.duration("us")),
)
"""Which types of Python a column of some type may hold; the first that fits all values is taken."""


def guessed(values: Sequence[Any]) -> pa.DataType | None:
    """Returns the type of a column from some values; `pa.null()` if there are none, None if it is of no known type."""
    kinds = {type(value) for value in values}
    kinds.discard(type(None))
    if not kinds:
        return pa.null()

    for allowed, found in TYPES:
        if all(issubclass(kind, allowed) for kind in kinds):
            return _exact(found, values)

    if all(issubclass(kind, (list, tuple)) for kind in kinds):
        inner = [entry for value in values if value is not None for entry in value]
        element = guessed(inner)
        if element is not None and (pa.types.is_integer(element) or pa.types.is_floating(element)):
            return pa.list_(element)
        if element is not None and pa.types.is_null(element):
            return pa.list_(pa.float64())

    return None


def _exact(kind: pa.DataType, values: Sequence[Any]) -> pa.DataType:
    """Returns the type that holds values of which `TYPES` knows the class."""
    if pa.types.is_integer(kind) and max(value for value in values if value is not None) >= 1 << 63:
        return pa.uint64()
    if pa.types.is_timestamp(kind) and any(value is not None and value.tzinfo for value in values):
        return MOMENT
    return kind


def answer_of(rows: Sequence[Sequence[Any]], types: pa.Schema) -> QueryResult:
    """Returns rows as columns of these types. Values of others are null, and listed in `QueryResult.unfit`."""
    columns: Sequence[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    arrays = []
    unfit: Unfit = {}
    for field_of_column, values in zip(types, columns, strict=True):
        array, bad = column_of(values, field_of_column.type)
        arrays.append(array)
        if bad:
            unfit[field_of_column.name] = bad

    return QueryResult(pa.Table.from_arrays(arrays, schema=types), unfit)


def column_of(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Returns values as an array of a type, and which of them are not of it."""
    try:
        return pa.array(values, kind), {}
    except UNFIT:
        pass

    # Arrow takes no decimals as floats, and no UUIDs as texts.
    try:
        return pa.array(list(map(_plain, values)), kind), {}
    except UNFIT:
        pass

    made = []
    bad = {}
    for row, value in enumerate(values):
        try:
            made.append(pa.scalar(_plain(value), kind).as_py())
        except UNFIT:
            made.append(None)
            bad[row] = f"{value!r} of type {type(value).__name__}"[:100]

    return pa.array(made, kind), bad


def _plain(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        number = float(value)
        # Two ids would become one.
        if value == value.to_integral_value() and number != value:
            raise ValueError(f"{value} has more digits than floating point")
        return number
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, uuid.UUID):
        return str(value)
    return value
