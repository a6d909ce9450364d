"""Tables of databases: headrace.open, baseline loops of the drivers, and torch's loader over a cursor, in turn."""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tests.servers import postgres
from torch.utils.data import DataLoader, IterableDataset

import headrace
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import Loop, each_once, exhaust, fail, rates_in_turn, same
from headrace.data.formats.sql import tables

BATCH = 512
COLUMNS = {"plain": "id, x, y", "arrays": "id, x, y, v"}


class Cursor(IterableDataset[Any]):
    """A table as people write it: one cursor, one row after the other."""

    def __init__(self, connection: Any, query: str) -> None:
        self.connection = connection
        self.query = query

    def rows(self) -> Iterator[Any]:
        """Yields the rows of the query."""
        if isinstance(self.connection, sqlite3.Connection):
            yield from self.connection.execute(self.query)
            return
        with self.connection.transaction(), self.connection.cursor("rows") as cursor:
            cursor.itersize = 5000
            cursor.execute(self.query)
            yield from cursor

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for key, x, y, *rest in self.rows():
            sample = {"id": key, "x": x, "y": y}
            if rest and isinstance(rest[0], bytes):
                sample["v"] = np.frombuffer(rest[0], np.float32)
            elif rest:
                sample["v"] = np.asarray(rest[0], np.float32)
            yield sample


def compare(loader: Any, rows: int) -> None:
    """Ends the program unless an epoch delivers each row once, as it is in the source."""
    seen = []
    for batch in loader:
        keys = batch["id"].numpy()
        same(batch["x"], keys / 4)
        same(batch["y"], keys % 10)
        if "v" in batch:
            arrays = batch["v"]
            if not isinstance(arrays, torch.Tensor):
                arrays = torch.stack([torch.frombuffer(bytearray(one), dtype=torch.float32) for one in arrays])
            same(arrays[:, 5], (keys + 5).astype(np.float32))
        seen.append(keys)
    each_once(np.concatenate(seen), rows)


def read_arrow(connection: Any, query: str, expected: int) -> None:
    """The baseline loop over ADBC, which only counts."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        count = sum(batch.num_rows for batch in cursor.fetch_record_batch())
    if count != expected:
        fail("the baseline loop lacks rows")


def read_sqlite3(connection: sqlite3.Connection, query: str, expected: int) -> None:
    """The same over sqlite3."""
    cursor = connection.execute(query)
    count = 0
    while rows := cursor.fetchmany(5000):
        count += len(rows)
    if count != expected:
        fail("the baseline loop lacks rows")


def held(url: str, table: str) -> Any:
    """Returns the table, once all of it lies in memory."""
    data = headrace.open(url, table=table, key="id")
    reading = data.reader._reading.get(data.reader._open)
    loader = headrace.DataLoader(data, BATCH, shuffle=True)
    while reading._whole is None:
        exhaust(loader)
        time.sleep(0.05)
    return data


def measure(where: str, url: str, adbc: Any, connection: Any, rows: int, rounds: int) -> list[Table]:
    """Returns the rates of both tables of a database."""
    made = []
    limit = tables.KEPT
    for table, columns in COLUMNS.items():
        kept = held(url, table)
        tables.KEPT = 0
        query = f"select {columns} from {table}"
        loaders: dict[str, Any] = {
            OURS: headrace.DataLoader(headrace.open(url, table=table, key="id"), BATCH),
            "headrace, shuffled": headrace.DataLoader(headrace.open(url, table=table, key="id"), BATCH, shuffle=True),
            "headrace, shuffled, in memory": headrace.DataLoader(kept, BATCH, shuffle=True),
            "torch": DataLoader(Cursor(connection, query), BATCH),
        }
        loops: dict[str, Loop] = {"baseline ADBC loop": functools.partial(read_arrow, adbc, query, rows)}
        if isinstance(connection, sqlite3.Connection):
            loops["baseline sqlite3 loop"] = functools.partial(read_sqlite3, connection, query, rows)
        for name, loader in loaders.items():
            compare(loader, rows)
            loops[name] = functools.partial(exhaust, loader)
        title = f"{where}, {table}, {rows:,} rows, batches of {BATCH}"
        checked = "In a first epoch every batch was compared with its source."
        made.append(Table(title, "rows/s", [Row("in order", rates_in_turn(loops, rows, rounds))], checked))
        tables.KEPT = limit
    return made


def postgresql(rows: int, rounds: int) -> list[Table]:
    """Measures in PostgreSQL."""
    import adbc_driver_postgresql.dbapi
    import psycopg

    programs = postgres.find_postgres()
    if programs is None:
        print("PostgreSQL is not installed")
        return []

    with postgres.running(programs) as server:
        arrays = "(select array_agg((g + k)::real) from generate_series(0, 31) k)"
        server.run(
            "create table plain (id bigint primary key, x float8, y int)",
            "create table arrays (id bigint primary key, x float8, y int, v real[])",
            f"insert into plain select g, g / 4.0, g % 10 from generate_series(0, {rows - 1}) g",
            f"insert into arrays select g, g / 4.0, g % 10, {arrays} from generate_series(0, {rows - 1}) g",
            "vacuum analyze",
        )
        with (
            adbc_driver_postgresql.dbapi.connect(server.url, autocommit=True) as adbc,
            psycopg.connect(server.url, autocommit=True) as connection,
        ):
            return measure("PostgreSQL", server.url, adbc, connection, rows, rounds)


def sqlite(rows: int, rounds: int) -> list[Table]:
    """Measures in SQLite."""
    import adbc_driver_sqlite.dbapi

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/train.db"
        arrays = (np.arange(rows)[:, None] + np.arange(32)).astype(np.float32)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("create table plain (id integer primary key, x real, y integer)")
            connection.execute("create table arrays (id integer primary key, x real, y integer, v blob)")
            plain = [(key, key / 4, key % 10) for key in range(rows)]
            connection.executemany("insert into plain values (?, ?, ?)", plain)
            both = [(*row, one.tobytes()) for row, one in zip(plain, arrays, strict=True)]
            connection.executemany("insert into arrays values (?, ?, ?, ?)", both)
            connection.commit()
            with adbc_driver_sqlite.dbapi.connect(path, autocommit=True) as adbc:
                return measure("SQLite", f"sqlite:///{path}", adbc, connection, rows, rounds)


PLACES = {"postgresql": postgresql, "sqlite": sqlite}


def databases(rows: int = 200_000, rounds: int = 9, places: tuple[str, ...] = tuple(PLACES)) -> list[Table]:
    """Tables of databases: headrace.open, baseline loops of the drivers, and torch's loader over a cursor, in turn.

    PostgreSQL runs on this machine, from its Debian package, with its data in a temporary folder. Tables have rows of a
    key, a float and a whole number, and those named "arrays" 32 floats more (in SQLite: as bytes). Batches of 512, no
    workers. The baseline loop counts the rows of `fetch_record_batch` of ADBC over the same query, and makes nothing of
    them; SQLite is compared with `fetchmany(5000)` of sqlite3, too. torch's loader has the IterableDataset that people
    write: a server-side cursor of psycopg, or a cursor of sqlite3.

    Connections stand before anything is measured, and headrace is kept from holding the table in memory, apart from the
    line "in memory". In a first epoch every batch of each loader is compared with the source.
    """
    return [table for place in places for table in PLACES[place](rows, rounds)]
