"""What is a database, told without loading anything: a URL, an engine of SQLAlchemy, or a function that connects."""

from __future__ import annotations

import os
import re

from headrace.core.text.urls import is_url

SCHEME = re.compile(
    r"(?P<base>postgresql|postgres|sqlite|mysql|mariadb|mssql|oracle|duckdb)(\+(?P<driver>[a-z0-9_]+))?:", re.IGNORECASE
)


def is_sql(source: object) -> bool:
    """Tells whether something is a database."""
    if isinstance(source, (str, os.PathLike)):
        text = os.fsdecode(source)
        return is_url(text) and SCHEME.match(text) is not None
    return is_engine(source) or is_function(source)


def is_engine(source: object) -> bool:
    """Tells whether something is an engine of SQLAlchemy."""
    return type(source).__module__.partition(".")[0] == "sqlalchemy" and hasattr(source, "raw_connection")


def is_function(source: object) -> bool:
    """Tells whether something may be a function that connects; a class, a collection or a connection is none."""
    if isinstance(source, type) or hasattr(source, "__getitem__") or hasattr(source, "cursor"):
        return False
    return callable(source)
