"""Connections to databases, each of one kind of library, which answer queries with Arrow columns.

A session is used by one thread at a time, in the process that opened it, and reads only. It raises what its library
raises; `database` makes errors of headrace of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from headrace.core.extras import extra
from headrace.sources.sql.answers import QueryResult, Unfit, answer_of, guessed
from headrace.sources.sql.dialect import Dialect
from headrace.sources.sql.relation import Relation, SelectedColumn

LOOKED_AT = 1000
"""Rows from which types are guessed where a library does not tell them."""

BATCH = 1 << 16
"""Rows of SQLite that come at a time: it tells types by the first ones."""


class DatabaseSession(Protocol):
    """An open connection."""

    def read(self, query: str, types: pa.Schema | None = None) -> QueryResult:
        """Returns the answer of a query.

        types: of all of its columns, in order; None: as the database tells, or as the values are.
        """

    def columns(self, relation: Relation) -> list[SelectedColumn]:
        """Returns the columns that a relation has. A type of `pa.null()` is not known, as no row has a value."""

    def close(self) -> None:
        """Ends the connection."""


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


class PostgresSession:
    """PostgreSQL by ADBC, whose answers are Arrow from the wire on."""

    def __init__(self, url: str) -> None:
        adbc = extra("adbc_driver_postgresql.dbapi", "postgresql")
        self._connection = adbc.connect(url, autocommit=True)

    def read(self, query: str, types: pa.Schema | None = None) -> QueryResult:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            return QueryResult(cursor.fetch_arrow_table())

    def columns(self, relation: Relation) -> list[SelectedColumn]:
        with self._connection.cursor() as cursor:
            schema = cursor.adbc_execute_schema(relation.everything())

        found = []
        for field in schema:
            stored = (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()
            cast, kind = self._asked_as(field.type, stored)
            expression = relation.column(field.name)
            if cast is not None:
                expression = f"cast({expression} as {cast})"
            found.append(SelectedColumn(field.name, expression, kind, stored))

        return found

    def _asked_as(self, kind: pa.DataType, stored: str) -> tuple[str | None, pa.DataType]:
        """Returns as what a column is asked for (None: as it is), and the type that then comes."""
        if stored == "numeric":
            return "double precision", pa.float64()
        if stored == "_numeric":
            return "double precision[]", pa.list_(pa.float64())
        if stored in ("uuid", "json", "jsonb") or self._is_enumeration(stored):
            return "text", pa.string()
        return None, kind

    def _is_enumeration(self, stored: str) -> bool:
        # The driver knows types that users have made by their numbers only.
        number = stored.removeprefix("unnamed<oid:").removesuffix(">")
        if not number.isdigit():
            return False
        answer = self.read(f"select 1 from pg_type where oid = {number} and typtype = 'e'")
        return bool(answer.table.num_rows)

    def close(self) -> None:
        self._connection.close()


# -- SQLite ------------------------------------------------------------------------------------------------------------

AFFINITIES = (
    (("INT",), pa.int64()),
    (("CHAR", "CLOB", "TEXT"), pa.string()),
    (("REAL", "FLOA", "DOUB"), pa.float64()),
    (("BLOB",), pa.binary()),
    (("BOOL", "DEC", "NUM"), pa.float64()),
)
"""Types by what stands in a declaration. Source: "Datatypes In SQLite", 3.1, apart from the last line."""


class SQLiteSession:
    """SQLite by ADBC where its driver is installed, else by Python's own module.

    Any column of SQLite may hold values of any type. Answers that are not of the types asked for are read again by
    Python's module, which tells value by value.
    """

    def __init__(self, path: str, timeout: float = 30.0) -> None:
        import sqlite3

        address = f"file:{_quoted_path(path)}?mode=ro"
        self._plain = sqlite3.connect(address, timeout, uri=True, check_same_thread=False)
        self._fast: Any = None
        with contextlib.suppress(ImportError):
            import adbc_driver_sqlite.dbapi as adbc

            self._fast = adbc.connect(address, autocommit=True)
            # Otherwise a program that writes at this moment makes any query fail.
            with self._fast.cursor() as cursor:
                cursor.execute(f"pragma busy_timeout = {round(timeout * 1000)}")
                cursor.fetchone()

    def read(self, query: str, types: pa.Schema | None = None) -> QueryResult:
        if self._fast is not None:
            with self._fast.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH)})
                cursor.execute(query)
                table = cursor.fetch_arrow_table()
            if types is None:
                return QueryResult(table)
            fitted = _fitted(table, types)
            if fitted is not None:
                return QueryResult(fitted)

        return _answer(self._plain.execute(query), types)

    def columns(self, relation: Relation) -> list[SelectedColumn]:
        cursor = self._plain.execute(f"{relation.everything()} limit {LOOKED_AT}")
        declared = self._declared(relation)
        found = []
        for column in _guessed_columns(relation, cursor):
            kind = column.type
            if kind is not None and pa.types.is_null(kind):
                kind = _affinity(declared.get(column.name, ""))
            elif (
                kind is not None
                and pa.types.is_integer(kind)
                and _affinity(declared.get(column.name, "")) == pa.float64()
            ):
                kind = pa.float64()
            found.append(SelectedColumn(column.name, column.expression, kind))

        return found

    def _declared(self, relation: Relation) -> dict[str, str]:
        """Returns the types with which columns were declared; "" for those that are computed."""
        # A temporary view lies in memory, and goes with the connection: the file is not written.
        self._plain.execute("drop view if exists temp.headrace_columns")
        self._plain.execute(f"create temp view headrace_columns as {relation.everything()}")
        rows = self._plain.execute("pragma temp.table_info(headrace_columns)").fetchall()
        self._plain.execute("drop view temp.headrace_columns")
        return {row[1]: row[2] for row in rows}

    def close(self) -> None:
        self._plain.close()
        if self._fast is not None:
            self._fast.close()


def _quoted_path(path: str) -> str:
    """Returns a path as a URI of SQLite holds it. Source: "Uniform Resource Identifiers" of its manual."""
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _affinity(declared: str) -> pa.DataType:
    for words, kind in AFFINITIES:
        if any(word in declared.upper() for word in words):
            return kind
    return pa.null()


def _fitted(table: pa.Table, types: pa.Schema) -> pa.Table | None:
    """Returns a table in the types asked for; None if its values are of others."""
    arrays = []
    for column, field in zip(table.columns, types, strict=True):
        if column.type == field.type:
            arrays.append(column)
        elif column.null_count == len(column):
            arrays.append(pa.nulls(len(column), field.type))
        elif pa.types.is_integer(column.type) and pa.types.is_floating(field.type):
            arrays.append(column.cast(field.type, safe=False))
        else:
            return None

    return pa.Table.from_arrays(arrays, schema=types)


# -- everything else ---------------------------------------------------------------------------------------------------


class RowSession:
    """Any connection of DB-API 2 (PEP 249), whose rows are turned into columns."""

    def __init__(self, connection: Any, dialect: Dialect, close: Callable[[], None] | None = None) -> None:
        """close: what ends the connection, where that is not its own `close`."""
        self._connection = connection
        self._dialect = dialect
        self._close = close or connection.close

    def read(self, query: str, types: pa.Schema | None = None) -> QueryResult:
        with self._executed(query) as cursor:
            return _answer(cursor, types)

    def columns(self, relation: Relation) -> list[SelectedColumn]:
        with self._executed(f"{relation.everything()} {self._dialect.limit(LOOKED_AT)}") as cursor:
            return _guessed_columns(relation, cursor)

    @contextlib.contextmanager
    def _executed(self, query: str) -> Iterator[Any]:
        cursor = self._connection.cursor()
        try:
            # Without parameters drivers leave % and : in the query alone.
            cursor.execute(query)
            yield cursor
        finally:
            # Each query sees what is there now, and no transaction stays open in the server. A connection that has
            # none says so; one that is broken does, too, and the next query will tell.
            with contextlib.suppress(Exception):
                cursor.close()
                self._connection.rollback()

    def close(self) -> None:
        self._close()


def _answer(cursor: Any, types: pa.Schema | None) -> QueryResult:
    """Returns the answer that a cursor has, some rows at a time: as rows of Python they take ten times the memory."""
    if types is None:
        rows = cursor.fetchall()
        fields = []
        for number, column in enumerate(cursor.description):
            kind = guessed([row[number] for row in rows])
            fields.append(pa.field(column[0], kind or pa.null()))
        return answer_of(rows, pa.schema(fields))

    tables = [types.empty_table()]
    unfit: Unfit = {}
    done = 0
    while rows := cursor.fetchmany(BATCH):
        part = answer_of(rows, types)
        tables.append(part.table)
        for name, found in part.unfit.items():
            unfit.setdefault(name, {}).update({done + row: what for row, what in found.items()})
        done += len(rows)

    return QueryResult(pa.concat_tables(tables), unfit)


def _guessed_columns(relation: Relation, cursor: Any) -> list[SelectedColumn]:
    rows = cursor.fetchall()
    found = []
    for number, column in enumerate(cursor.description):
        values = [row[number] for row in rows]
        kind = guessed(values)
        stored = ""
        if kind is None:
            names = {type(value).__name__ for value in values if value is not None}
            stored = " or ".join(sorted(names))
        elif pa.types.is_null(kind):
            kind = _told(column[1])
        found.append(SelectedColumn(column[0], relation.column(column[0]), kind, stored))

    return found


NUMBERED_TYPES: dict[int, pa.DataType] = {
    **dict.fromkeys((1, 2, 3, 8, 9, 13), pa.int64()),
    **dict.fromkeys((0, 4, 5, 246), pa.float64()),
    **dict.fromkeys((15, 253, 254), pa.string()),
    **dict.fromkeys((249, 250, 251, 252), pa.binary()),
    **dict.fromkeys((7, 12), pa.timestamp("us")),
    **dict.fromkeys((20, 21, 23), pa.int64()),
    **dict.fromkeys((700, 701, 1700), pa.float64()),
    **dict.fromkeys((25, 1042, 1043), pa.string()),
    **dict.fromkeys((1114, 1184), pa.timestamp("us")),
    10: pa.date32(),
    16: pa.bool_(),
    17: pa.binary(),
}
"""Types by the numbers that drivers of MySQL and PostgreSQL give them, of which none are the same.

Sources: `enum_field_types` of MySQL's protocol; `pg_type.dat` of PostgreSQL.
"""


def _told(code: object) -> pa.DataType:
    """Returns the type of a column without values, by the number that a driver gives it."""
    if isinstance(code, int):
        return NUMBERED_TYPES.get(code, pa.null())
    return pa.null()
