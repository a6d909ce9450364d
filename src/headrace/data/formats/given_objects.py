"""What `headrace.open` takes besides files: databases, and objects of other libraries that hold data."""

from __future__ import annotations

from typing import Any

from headrace.core.errors import UsageError, wrong_argument
from headrace.data.formats.protocol import Reader
from headrace.sources.sql.recognition import is_sql


def rows_of(source: Any, columns: Any, query: str | None, table: str | None, key: str | None) -> Reader | None:
    """Returns a reader of a database; None if the source is none. Raises what `sql.open_sql` raises.

    Raises `UsageError`, too, if query, table or key are given for something else.
    """
    if is_sql(source):
        from headrace.data.formats.sql.tables import open_sql

        return open_sql(source, query, table, key, columns)

    for name, value in (("query", query), ("table", table), ("key", key)):
        if value is not None:
            expected = "postgresql://, sqlite:///, mysql://, an engine, or a function that connects"
            found = f"it was given, and the data are a {type(source).__name__} that is no database"
            raise wrong_argument(name, value, expected, place="headrace.open", found=found)

    return None


def reader_of_object(source: Any) -> Reader:
    """Returns a reader of a `datasets.Dataset`. Raises `UsageError` for all else."""
    if hasattr(source, "features") and hasattr(source, "data"):
        from headrace.data.formats.huggingface import reader_of

        return reader_of(source)

    if hasattr(source, "cursor"):
        found = f"a {type(source).__name__}"
        expected = "the URL of a database, an engine of SQLAlchemy, or a function that returns a connection"
        cure = "give a function that connects: a connection cannot be sent to worker processes"
        raise UsageError.about("cannot open this", place="headrace.open", found=found, expected=expected, cure=cure)

    found = f"{source!r} of type {type(source).__name__}"
    expected = "a path, a list of files, a datasets.Dataset, or a database"
    raise UsageError.about("cannot open this", place="headrace.open", found=found, expected=expected)
