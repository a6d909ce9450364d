"""Connections with databases."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.sources.sql.sessions import SQLiteSession

LOCKS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.readline()
connection.rollback()
"""


def test_a_program_that_writes_to_sqlite_is_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    path = str(tmp_path / "rows.db")
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (k integer primary key)")
        connection.execute("insert into t values (5)")
    connection.close()

    session = SQLiteSession(path)
    command = [sys.executable, "-c", LOCKS, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "locked\n"
        # What waits is SQLite itself, which tells nobody that it does.
        release = threading.Timer(0.5, writer.stdin.close)
        release.start()
        try:
            assert session.read("select k from t").table.column("k").to_pylist() == [5]
        finally:
            release.join()
    session.close()
