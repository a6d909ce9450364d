"""What a user wants to connect to: a URL, an engine of SQLAlchemy, or a function that returns a connection.

A target is small and can be pickled, and shows no secret.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from headrace.core.errors import DatasetNotFoundError, UsageError
from headrace.core.extras import extra
from headrace.core.process import this_process
from headrace.core.text.urls import check_server, shown_url
from headrace.sources.sql.dialect import Dialect
from headrace.sources.sql.recognition import SCHEME, is_engine, is_function
from headrace.sources.sql.sessions import DatabaseSession, PostgresSession, RowSession, SQLiteSession

PLACE = "headrace.open"

WITH_PORT = ("postgresql", "postgres", "mysql", "mariadb")
"""Databases whose URLs have host and port."""


class Target(Protocol):
    """Something to connect to."""

    place: str
    """What a user would call it, without secrets."""
    dialect: Dialect
    secrets: Secrets
    """These are cut out of what libraries say."""

    def open(self) -> DatabaseSession:
        """Connects. Raises what the library raises."""


def target_of(source: Any) -> Target:
    """Returns what to connect to. Raises `UsageError`, `DatasetNotFoundError` (no such file), `MissingExtraError`."""
    if isinstance(source, (str, os.PathLike)):
        return _target_of_url(os.fsdecode(source))
    if is_engine(source):
        return AlchemyTarget(source.url.render_as_string(hide_password=False), source)
    if is_function(source):
        return FunctionTarget(source)

    expected = "the URL of a database, an engine of SQLAlchemy, or a function that returns a connection"
    found = f"a {type(source).__name__}"
    if hasattr(source, "cursor"):
        fix = "give a function that connects: a connection cannot be sent to worker processes"
        raise UsageError.about("cannot open this", place=PLACE, found=found, expected=expected, fix=fix)
    raise UsageError.about("cannot open this", place=PLACE, found=found, expected=expected)


def _target_of_url(url: str) -> Target:
    match = SCHEME.match(url)
    if match is None:
        expected = "postgresql://, sqlite:///, mysql://, mariadb://, or another URL of SQLAlchemy"
        raise UsageError.about("this is no database", place=PLACE, found=shown_url(url), expected=expected)

    base = match["base"].lower()
    if base in WITH_PORT and _is_plain(url):
        check_server(url, PLACE, f"{base}://host:port/database", needs_host=False)
    if match["driver"] is None and base in ("postgresql", "postgres") and _is_installed("adbc_driver_postgresql"):
        return PostgresTarget(url)
    if base == "sqlite" and match["driver"] is None:
        return SQLiteTarget(url)
    if base == "postgres":
        url = "postgresql" + url[match.end("base") :]
    if match["driver"] is None and base in ("mysql", "mariadb") and not _is_installed("MySQLdb"):
        url = f"{base}+pymysql{url[match.end('base') :]}"
    return AlchemyTarget(url)


def _is_plain(url: str) -> bool:
    """Tells whether host and port stand where they seem to: some drivers take passwords with slashes, unquoted."""
    try:
        authority = urlsplit(url).netloc
    except ValueError:
        return False
    return "@" in authority or "@" not in url


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


@dataclass(frozen=True)
class Secrets:
    """What a URL holds that no error may show."""

    words: tuple[str, ...] = ()
    """Passwords, and values of the query, as they stand there and unquoted; the longest first."""

    users: tuple[str, ...] = ()


PLAIN_PARAMETERS = frozenset({
    "application_name", "autocommit", "channel_binding", "charset", "check_same_thread", "client_encoding",
    "connect_timeout", "driver", "gssencmode", "host", "isolation_level", "keepalives", "mode", "port", "ssl",
    "ssl_mode", "sslmode", "target_session_attrs", "timeout", "tls",
})  # fmt: skip
"""Parameters of a URL whose values are words that errors use, too, such as "disable" and "require"."""


def secrets_of(url: str) -> Secrets:
    """Returns the secrets of a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return Secrets()

    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    words = {password, unquote(password)}
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if name.lower() not in PLAIN_PARAMETERS:
            words |= {value, unquote(value)}

    words.discard("")
    users = {user, unquote(user)}
    users.discard("")
    return Secrets(tuple(sorted(words, key=len, reverse=True)), tuple(users))


class PostgresTarget:
    """PostgreSQL by ADBC."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.place = shown_url(url)
        self.dialect = Dialect("postgresql")
        self.secrets = secrets_of(url)

    def open(self) -> DatabaseSession:
        return PostgresSession(self._url)


class SQLiteTarget:
    """A file of SQLite: `sqlite:///relative.db`, `sqlite:////absolute.db`."""

    def __init__(self, url: str) -> None:
        rest = url.partition(":")[2]
        if not rest.startswith("///"):
            expected = "sqlite:///relative.db, or sqlite:////absolute.db"
            fix = "write three slashes in front of a relative path, and four where the path is absolute"
            raise UsageError.about("this is no file", place=PLACE, found=shown_url(url), expected=expected, fix=fix)

        path = rest[3:].partition("?")[0]
        if path in ("", ":memory:"):
            fix = "write the data to a file, or give a function that returns the connection"
            raise UsageError.about("a database in memory has no other reader", place=PLACE, found=url, fix=fix)

        self._path = str(Path(path).absolute())
        self.place = f"sqlite:///{path}"
        self.dialect = Dialect("sqlite")
        self.secrets = Secrets()
        if not Path(self._path).is_file():
            fix = "correct the path; after sqlite: three slashes begin a relative one, four an absolute one"
            raise DatasetNotFoundError.about("there is no such database", place=url, found="no file", fix=fix)

    def open(self) -> DatabaseSession:
        return SQLiteSession(self._path)


class AlchemyTarget:
    """What SQLAlchemy connects to.

    An engine is used in the process that made it and in those forked from it. Elsewhere one is made from its URL.
    """

    def __init__(self, url: str, engine: Any = None) -> None:
        self._url = url
        self._engine = engine
        self._process = this_process.current
        self.place = shown_url(url)
        self.dialect = Dialect.of(url.partition(":")[0].partition("+")[0].lower())
        self.secrets = secrets_of(url)
        if engine is None:
            self._make_engine()

    def _make_engine(self) -> Any:
        alchemy = extra("sqlalchemy", "sql")
        scheme = self._url.partition(":")[0]
        try:
            # A session ends its own transactions; to do it again fails loudly where the server is gone.
            return alchemy.create_engine(self._url, poolclass=alchemy.pool.NullPool, pool_reset_on_return=None)
        except ImportError as error:
            fix = f"install the driver of {scheme}"
            if self.dialect.name == "mysql":
                fix = "pip install 'headrace[mysql]'"
            elif self.dialect.name == "postgresql":
                fix = "pip install 'headrace[postgresql]', and write postgresql://"
            raise UsageError.about("a package is missing", place=self.place, found=error, fix=fix) from error
        except (ValueError, alchemy.exc.ArgumentError, alchemy.exc.NoSuchModuleError) as error:
            # What the library says may quote the URL.
            found = type(error).__name__
            fix = "correct the URL: SCHEME://USER:PASSWORD@HOST/DATABASE"
            what = "this is no URL of a database"
            raise UsageError.about(what, place=self.place, found=found, fix=fix) from None

    def open(self) -> DatabaseSession:
        if self._engine is None:
            self._engine = self._make_engine()
        if self._process is not this_process.current:
            # Connections of the parent are left alone: they are closed by the process that has opened them.
            self._engine.dispose(close=False)
            self._process = this_process.current

        connection = self._engine.raw_connection()
        return RowSession(connection, self.dialect)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]


def _needed_arguments(function: Callable[..., Any]) -> str | None:
    """Returns which arguments a function needs, in Python's words; None: none, or nobody knows."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None  # some functions of C libraries have none to show
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return None


class FunctionTarget:
    """What a user's function connects to."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        name = getattr(connect, "__qualname__", type(connect).__name__)
        self.place = f"<{name}()>"
        self.secrets = Secrets()
        if (needed := _needed_arguments(connect)) is not None:
            fix = "give a function without arguments, such as functools.partial of this one"
            expected = "a function that connects when it is called without arguments"
            raise UsageError.about("cannot open this", place=self.place, found=needed, expected=expected, fix=fix)

        connection = connect()
        package = type(connection).__module__.partition(".")[0]
        if not hasattr(connection, "cursor"):
            found = f"a {type(connection).__name__}"
            expected = "a connection of DB-API 2, with the method cursor()"
            raise UsageError.about(
                "this function connects to nothing", place=self.place, found=found, expected=expected
            )

        connection.close()
        self.dialect = Dialect.of(package)

    def open(self) -> DatabaseSession:
        return RowSession(self._connect(), self.dialect)
