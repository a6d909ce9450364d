"""The keys of all rows, in their order, as they were when the data were opened: sample i is the row with key i.

All keys are read once, as Arrow: 8 bytes a row for whole numbers, which costs less than to have the server count rows
(`row_number()`): of a million rows 0.16 s and not 0.24 s.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import FormatError, UsageError
from headrace.sources.sql.database import Database
from headrace.sources.sql.relation import KEY_NAME, Relation, SelectedColumn, selected

Rows = npt.NDArray[np.int64]

LIKELY = ("id", "key", "pk", "uuid", "rowid")
"""Names of columns that are usually unique."""


def keyed(database: Database, relation: Relation, columns: list[SelectedColumn], key: str | None) -> Relation:
    """Returns a relation with its key. Raises `UsageError` for a column that is not there, or cannot be a key."""
    names = [column.name for column in columns]
    if key is None:
        likely = [name for name in names if name.lower() in LIKELY or name.lower().endswith("_id")]
        fix = "name the column that is unique and never null: key=..."
        if likely:
            fix = f"name the column that is unique and never null; this looks like one: key={likely[0]!r}"
        found = "columns " + ", ".join(names)
        raise UsageError.about(
            "there is no key", place=f"headrace.open(key=) of {database.place}", found=found, fix=fix
        )

    if not isinstance(key, str) or key not in names:
        expected = "one of " + ", ".join(names)
        raise UsageError.about("there is no such key", place=database.place, found=repr(key), expected=expected)

    column = selected(columns, [key], database.place)[0]
    kind = column.type
    if kind is not None and pa.types.is_integer(kind) and kind != pa.uint64():
        return relation.with_key(SelectedColumn(key, relation.column(key), pa.int64(), column.stored))

    if kind is None or not _has_order(kind):
        expected = "whole numbers below 2**63, texts, UUIDs, dates or timestamps"
        fix = "choose another key, or make one in the query: row_number() over (order by ...)"
        found = f"{column.stored or kind}"
        what = "this column cannot be a key"
        raise UsageError.about(what, place=f"{database.place}, column {key!r}", found=found, expected=expected, fix=fix)

    expression = relation.column(key)
    if not pa.types.is_string(kind) or column.stored:
        expression = database.dialect.as_text(expression)
    return relation.with_key(SelectedColumn(key, expression, pa.string(), column.stored))


def _has_order(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_timestamp(kind) or types.is_date(kind) or types.is_null(kind))


class KeyIndex:
    """The keys of all rows, ascending as the database orders them: numbers [n], or texts [n]."""

    def __init__(self, keys: pa.Array, place: str, name: str) -> None:
        """keys: of int64 or string. Raises `FormatError` if one is missing or comes twice."""
        where = f"{place}, column {name!r}"
        fix = "choose a column that is unique and never null, or leave such rows out in query="
        what = "this column cannot be a key"
        if keys.null_count:
            found = f"{keys.null_count:,} rows of {len(keys):,} without a value (null)"
            raise FormatError.about(what, place=where, found=found, expected="a key in each row", fix=fix)

        twice = _first_repeated(keys)
        if twice is not None:
            found = f"{twice!r} in more than one row"
            raise FormatError.about(what, place=where, found=found, expected="each key once", fix=fix)

        self._texts = keys
        self._numbers = _as_numbers(keys)

    @staticmethod
    def read(database: Database, relation: Relation) -> KeyIndex:
        """Reads the keys of a relation. Raises `FormatError` if they are none, and `StorageError`."""
        kind = pa.int64() if relation.has_numbers else pa.string()
        answer = database.read(relation.select([]), pa.schema([(KEY_NAME, kind)]))
        name = relation.key.name if relation.key is not None else ""
        unfit = answer.unfit.get(KEY_NAME)
        if unfit:
            where = f"{database.place}, column {name!r}"
            found = next(iter(unfit.values()))
            raise FormatError.about("this column cannot be a key", place=where, found=found, expected=str(kind))

        return KeyIndex(answer.table.column(0).cast(kind).combine_chunks(), database.place, name)

    def __len__(self) -> int:
        return len(self._texts)

    def __getstate__(self) -> dict[str, Any]:
        # Numbers and texts are the same memory here, and would be sent twice.
        return {"texts": self._texts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._texts = state["texts"]
        self._numbers = _as_numbers(self._texts)

    def at(self, rows: Rows) -> list[Any]:
        """Returns keys as Python's numbers or texts. rows: int64 [k], 0 .. n-1."""
        if self._numbers is not None:
            return list(self._numbers[rows].tolist())
        return list(self._texts.take(pa.array(rows)).to_pylist())

    def found(self, rows: Rows, keys: pa.ChunkedArray) -> Rows | None:
        """Returns where the rows stand in an answer: int64 [k], -1 for those that are not there; None: just so.

        rows: int64 [k]. keys: of the answer, in any order.
        """
        keys = keys.combine_chunks()
        if self._numbers is not None:
            given = keys.cast(pa.int64()).to_numpy(zero_copy_only=False)
            return _places_of(self._numbers[rows], given)

        asked = self._texts.take(pa.array(rows))
        keys = keys.cast(pa.string())
        if asked.equals(keys):
            return None
        places = pc.index_in(asked, value_set=keys)
        found: Rows = pc.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    def digest(self) -> str:
        """Returns a text that differs if any key does."""
        digest = hashlib.sha256()
        for buffer in self._texts.buffers():
            if buffer is not None:
                digest.update(buffer)
        return digest.hexdigest()


def _as_numbers(keys: pa.Array) -> Rows | None:
    """Returns keys as an array of numbers, without a copy; None if they are texts."""
    if not pa.types.is_integer(keys.type):
        return None
    numbers: Rows = keys.to_numpy(zero_copy_only=False)
    return numbers


def _places_of(wanted: Rows, given: Rows) -> Rows | None:
    """Returns where numbers stand among others: int64 [k], -1 for those that do not; None if both are the same."""
    if np.array_equal(wanted, given):
        return None
    if not len(given):
        return np.full(len(wanted), -1)

    order = np.argsort(given, kind="stable")
    places = order[np.minimum(np.searchsorted(given, wanted, sorter=order), len(given) - 1)]
    return np.where(given[places] == wanted, places, -1)


def _first_repeated(keys: pa.Array) -> Any:
    """Returns a key that comes more than once, or None."""
    if len(keys) < 2:
        return None
    if pa.types.is_integer(keys.type):
        numbers = keys.to_numpy(zero_copy_only=False)
        again = np.flatnonzero(np.diff(numbers) == 0)
        return int(numbers[again[0]]) if len(again) else None

    counts = pc.value_counts(keys)
    again = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))
    return again[0].as_py() if len(again) else None
