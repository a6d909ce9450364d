"""What `headrace.open` is given: a path or a URL, a list of them, a database, or an object of another library."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.core.errors import UsageError, wrong_argument
from headrace.data.formats.listed_files import open_listed
from headrace.data.formats.protocol import Names, Reader
from headrace.data.formats.registry import open_reader
from headrace.data.formats.shards import FileList
from headrace.sources.sql.recognition import is_sql
from headrace.storage.stores.registry import cache_settings
from headrace.storage.stores.store_options import StoreOptions, options_for


class Wanted(NamedTuple):
    """What is wanted of data, as `headrace.open` was told; whatever they are."""

    columns: Names | None
    format: str | None
    trust: bool
    options: Mapping[str, object] | None
    cache_dir: str | os.PathLike[str] | None
    cache_limit: int | str | None


class Opened(NamedTuple):
    """Data that were opened."""

    reader: Reader
    options: StoreOptions | None
    """Of the store, if they lie in one."""
    listed: FileList | None = None
    """The files, if they were given as a list."""


class GivenData(Protocol):
    """Data that were given in one way."""

    def read_as(self, wanted: Wanted) -> Opened:
        """Opens them. Raises `DatasetNotFoundError`, `FormatError`, `UsageError`, or `OSError` with the path."""


@dataclass(frozen=True)
class GivenPath:
    """A file, a folder or a pattern, on this machine or as a URL."""

    path: str | os.PathLike[str]

    def read_as(self, wanted: Wanted) -> Opened:
        options = options_for(self.path, wanted.options)
        cache = cache_settings(wanted.cache_dir, wanted.cache_limit, self.path)
        reader = open_reader(
            self.path, format=wanted.format, trust=wanted.trust, columns=wanted.columns, options=options, cache=cache
        )
        return Opened(reader, options)


@dataclass(frozen=True)
class GivenFiles:
    """Files of one format, which are read in this order."""

    files: Sequence[Any]

    def read_as(self, wanted: Wanted) -> Opened:
        options = options_for(self.files, wanted.options)
        cache = cache_settings(wanted.cache_dir, wanted.cache_limit, next(iter(self.files), None))
        listed, reader = open_listed(
            self.files, format=wanted.format, trust=wanted.trust, columns=wanted.columns, options=options, cache=cache
        )
        return Opened(reader, options, listed)


@dataclass(frozen=True)
class GivenDatabase:
    """A database: its URL, an engine of SQLAlchemy, or a function that connects."""

    source: Any
    query: str | None
    table: str | None
    key: str | None

    def read_as(self, wanted: Wanted) -> Opened:
        refuse_settings_of_files(wanted, "a database")
        return Opened(self.rows(wanted.columns), None)

    def rows(self, columns: Names | None) -> Reader:
        """Returns a reader of the rows. Raises what `open_sql` raises."""
        from headrace.data.formats.sql.tables import open_sql

        return open_sql(self.source, self.query, self.table, self.key, columns)


@dataclass(frozen=True)
class GivenObject:
    """An object of another library that holds data: a `datasets.Dataset`."""

    value: Any

    def read_as(self, wanted: Wanted) -> Opened:
        reader = self._reader()
        refuse_settings_of_files(wanted, f"a {type(self.value).__name__}")
        return Opened(reader, None)

    def _reader(self) -> Reader:
        value = self.value
        if hasattr(value, "features") and hasattr(value, "data") and not isinstance(value, type):
            from headrace.data.formats.huggingface import reader_of

            return reader_of(value)

        what = "cannot open this"
        if hasattr(value, "cursor"):
            found = f"a {type(value).__name__}"
            expected = "the URL of a database, an engine of SQLAlchemy, or a function that returns a connection"
            fix: str | None = "give a function that connects: a connection cannot be sent to worker processes"
            raise UsageError.about(what, place="headrace.open", found=found, expected=expected, fix=fix)

        found = f"{value!r} of type {type(value).__name__}"
        expected = "a path, a list of files, a datasets.Dataset, or a database"
        fix = None
        if isinstance(value, bytes):
            fix = "give the path as text: os.fsdecode(path)"
        elif isinstance(value, Mapping):
            found = f"a {type(value).__name__}"
            fix = f"choose one of {', '.join(map(repr, value))}, as in data[{next(iter(value), 'name')!r}]"
        raise UsageError.about(what, place="headrace.open", found=found, expected=expected, fix=fix)


def refuse_settings_of_files(wanted: Wanted, what: str) -> None:
    """Raises `UsageError` for what was wanted and only means something for files. what: the data are."""
    for name in ("format", "options", "cache_dir", "cache_limit"):
        if getattr(wanted, name) not in (None, {}):
            found = f"it was given, and the data are {what}"
            fix = f"leave {name}= out"
            raise wrong_argument(name, None, "files with it", place="headrace.open", found=found, fix=fix)


def given_data(source: Any, query: str | None, table: str | None, key: str | None) -> GivenData:
    """Tells what a source is, and opens nothing. Raises `UsageError` for query, table or key of what is no database."""
    if is_sql(source):
        return GivenDatabase(source, query, table, key)
    if hasattr(source, "cursor"):
        return GivenObject(source)  # an open connection, which it refuses

    for name, value in (("query", query), ("table", table), ("key", key)):
        if value is not None:
            expected = "postgresql://, sqlite:///, mysql://, an engine, or a function that connects"
            found = f"it was given, and the data are a {type(source).__name__} that is no database"
            fix = f"leave {name}= out, or write a file of SQLite as sqlite:///PATH"
            raise wrong_argument(name, value, expected, place="headrace.open", found=found, fix=fix)

    if isinstance(source, (str, os.PathLike)):
        return GivenPath(source)
    if isinstance(source, (list, tuple)):
        return GivenFiles(source)
    return GivenObject(source)
