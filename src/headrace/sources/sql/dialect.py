"""How databases differ in their words: names, texts, and limits. No query has parameters, so that `%` and `:` are safe.

Texts are written into queries only as keys that came from the database itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.errors import UsageError

Name = Literal["postgresql", "sqlite", "mysql", "other"]

DRIVERS: dict[str, Name] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "sqlite": "sqlite",
    "sqlite3": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
}
"""The dialect by what SQLAlchemy calls it, or by the package of a connection."""


@dataclass(frozen=True)
class Dialect:
    """The words of one kind of database."""

    name: Name

    @staticmethod
    def of(called: str) -> Dialect:
        """Returns the dialect of a scheme or a package; the words of the standard for those that are not known."""
        return Dialect(DRIVERS.get(called, "other"))

    def quoted(self, name: str) -> str:
        """Returns a name as a query holds it, whatever letters it has. Raises `UsageError` for one that cannot be."""
        if "\0" in name or not name:
            raise UsageError.about("this cannot be a name in a database", found=repr(name), expected="a text")

        if self.name == "mysql":
            return "`" + name.replace("`", "``") + "`"
        return '"' + name.replace('"', '""') + '"'

    def text(self, value: str) -> str:
        """Returns a text as a query holds it. Raises `UsageError` for one that cannot stand there."""
        if "\0" in value:
            raise UsageError.about(
                "a key cannot be asked for", found=repr(value), expected="a text without a zero byte"
            )

        # A backslash is a letter or an escape by the server's settings; these forms mean the same under all of them.
        if self.name == "postgresql":
            return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
        if self.name == "mysql":
            return f"_utf8mb4 x'{value.encode().hex()}'"
        return "'" + value.replace("'", "''") + "'"

    def limit(self, rows: int) -> str:
        """Returns the words that follow `order by` and end the answer after so many rows."""
        if self.name == "other":
            return f"fetch first {rows} rows only"
        return f"limit {rows}"

    def as_text(self, expression: str, length: int = 4000) -> str:
        """Returns an expression as text. length: how many letters, where a database wants to be told."""
        if self.name == "mysql":
            return f"cast({expression} as char)"
        if self.name == "other":
            return f"cast({expression} as varchar({length}))"
        return f"cast({expression} as text)"
