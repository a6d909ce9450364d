"""Tables of databases: headrace.open, bare loops of the drivers, and torch's loader over a cursor, in turn, in one run.

    python benchmarks/tables.py                    PostgreSQL and SQLite
    python benchmarks/tables.py sqlite             one of them
    python benchmarks/tables.py --json FILE        also write the figures there; --rows 20000: of fewer rows

PostgreSQL runs on this machine, from its Debian package, with its data in a temporary folder. Tables have 200,000 rows
of a key, a float and a whole number, and those named "arrays" 32 floats more (in SQLite: as bytes). Batches of 512, no
workers. The bare loop counts the rows of `fetch_record_batch` of ADBC over the same query, and makes nothing of them.
torch's loader has the IterableDataset that people write: a server-side cursor of psycopg, or a cursor of sqlite3.

SQLite is compared with a bare loop of sqlite3, `fetchmany(5000)`, as well.

Connections stand before anything is measured, and headrace is kept from holding the table in memory, apart from the
line "in memory". In a first epoch every batch of each loader is compared with the source.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import headrace
from headrace.data.formats.sql import tables
from rates import Loop, all_in_turn, exhaust, show_rates
from results import Row, Table, option
from results import write as write_results

sys.path.insert(0, str(Path(__file__).parents[1]))

CHECKED = "In a first epoch every batch was compared with its source."
BATCH = 512
COLUMNS = {"plain": "id, x, y", "arrays": "id, x, y, v"}


class Cursor(IterableDataset):
    """A table as people write it: one cursor, one row after the other."""

    def __init__(self, connection: Any, query: str) -> None:
        self.connection = connection
        self.query = query

    def rows(self) -> Iterator[Any]:
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


def compare(loader: Any, rows: int, has_array: bool) -> None:
    """Raises unless an epoch delivers each row once, as it is in the source."""
    seen = np.zeros(rows, np.int64)
    for batch in loader:
        keys = batch["id"].numpy()
        seen[keys] += 1
        right = np.array_equal(batch["x"].numpy(), keys / 4) and np.array_equal(batch["y"].numpy(), keys % 10)
        if has_array:
            arrays = batch["v"]
            if not isinstance(arrays, torch.Tensor):
                arrays = torch.stack([torch.frombuffer(bytearray(one), dtype=torch.float32) for one in arrays])
            right = right and np.array_equal(arrays.numpy()[:, 5], (keys + 5).astype(np.float32))
        if not right:
            raise SystemExit("a batch differs from its source")
    if not (seen == 1).all():
        raise SystemExit("not every row came once")


def bare(connection: Any, query: str, expected: int) -> None:
    """The loop that only counts."""
    count = 0
    with connection.cursor() as cursor:
        cursor.execute(query)
        for batch in cursor.fetch_record_batch():
            count += batch.num_rows
    if count != expected:
        raise SystemExit("the bare loop lacks rows")


def bare_sqlite3(connection: sqlite3.Connection, query: str, expected: int) -> None:
    """The same over sqlite3."""
    cursor = connection.execute(query)
    count = 0
    while rows := cursor.fetchmany(5000):
        count += len(rows)
    if count != expected:
        raise SystemExit("the bare loop lacks rows")


def held(url: str, table: str, rows: int) -> headrace.data.stored.StoredDataset:
    """The table, once all of it lies in memory."""
    data = headrace.open(url, table=table, key="id")
    reading = data.reader._reading.get()
    loader = headrace.DataLoader(data, BATCH, shuffle=True)
    while reading._whole is None:
        exhaust(loader)
        time.sleep(0.05)
    return data


def measure(where: str, url: str, adbc: Any, connection: Any, rows: int, rounds: int) -> list[Table]:
    made = []
    for table, columns in COLUMNS.items():
        has_array = table == "arrays"
        kept = held(url, table, rows)
        limit = tables.KEPT
        tables.KEPT = 0
        query = f"select {columns} from {table}"
        loaders: dict[str, Any] = {
            "headrace, in order": headrace.DataLoader(headrace.open(url, table=table, key="id"), BATCH),
            "headrace, shuffled": headrace.DataLoader(headrace.open(url, table=table, key="id"), BATCH, shuffle=True),
            "headrace, shuffled, in memory": headrace.DataLoader(kept, BATCH, shuffle=True),
            "torch over a cursor": DataLoader(Cursor(connection, query), BATCH),
        }
        for loader in loaders.values():
            compare(loader, rows, has_array)

        loops: dict[str, Loop] = {"bare ADBC loop": lambda query=query: bare(adbc, query, rows)}
        if isinstance(connection, sqlite3.Connection):
            loops["bare sqlite3 loop"] = lambda query=query: bare_sqlite3(connection, query, rows)
        for name, loader in loaders.items():
            loops[name] = lambda loader=loader: exhaust(loader)

        pairs = [
            ("headrace, in order", "bare ADBC loop"),
            ("headrace, in order", "torch over a cursor"),
            ("headrace, shuffled", "torch over a cursor"),
        ]
        if "bare sqlite3 loop" in loops:
            pairs.append(("headrace, in order", "bare sqlite3 loop"))
        rates = all_in_turn(loops, rows, rounds)
        title = f"{where}, {table}, {rows:,} rows, batches of {BATCH}"
        show_rates(title, "rows/s", rates, pairs)
        figures = {name.replace("torch over a cursor", "torch"): values for name, values in rates.items()}
        figures["headrace"] = figures.pop("headrace, in order")
        made.append(Table(title, "rows/s", [Row("in order", figures)], CHECKED))
        tables.KEPT = limit

    return made


def postgresql(rows: int, rounds: int) -> list[Table]:
    import adbc_driver_postgresql.dbapi
    import psycopg
    from tests.servers import postgres

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
    import adbc_driver_sqlite.dbapi

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/train.db"
        keys = np.arange(rows)
        arrays = (keys[:, None] + np.arange(32)).astype(np.float32)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", metavar="PLACE", help=", ".join(PLACES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=200_000)
    option(parser)
    given = parser.parse_args()
    tables = []
    for place in given.places or PLACES:
        tables += PLACES[place](given.rows, given.rounds)
    write_results(given.json, tables, ["adbc-driver-postgresql", "adbc-driver-sqlite", "psycopg"])


if __name__ == "__main__":
    main()
