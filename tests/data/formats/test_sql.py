"""Tables of databases as map-style data: real servers, real files."""

from __future__ import annotations

import datetime
import gc
import os
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import (
    SampleError,
)
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres

ROWS = 3000


@pytest.fixture(scope="module")
def served(shared_postgres: Postgres) -> Postgres:
    """PostgreSQL with a table `samples`: keys in steps of 3 from -300 on, among them large ones."""
    shared_postgres.run(
        "drop table if exists samples",  # where the tests of this file do not run one after the other
        "create table samples (id bigint primary key, x double precision not null, y int, v real[])",
        "insert into samples select 3 * g - 300, g / 4.0, g % 7, array[g, g + 1, g + 2] "
        f"from generate_series(0, {ROWS - 1}) g",
        f"update samples set id = 9223372036854775807 where id = {3 * ROWS - 303}",
    )
    return shared_postgres


@pytest.fixture
def lite(tmp_path: Path) -> Path:
    """A file of SQLite with the same table."""
    path = tmp_path / "train.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table samples (id integer primary key, x real, y integer)")
        rows = [(3 * number - 300, number / 4.0, number % 7) for number in range(ROWS)]
        connection.executemany("insert into samples values (?, ?, ?)", rows)
    connection.close()
    return path


@pytest.fixture(params=["postgresql", "alchemy", "psycopg", "sqlite", "sqlite3", "mariadb"])
def opened(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The table by each way to it."""
    kind = request.param
    if kind in ("postgresql", "alchemy", "psycopg"):
        served = request.getfixturevalue("served")
        source = {"postgresql": served.url, "alchemy": served.alchemy_url, "psycopg": served.connect}[kind]
    elif kind == "mariadb":
        source = _with_table(request.getfixturevalue("shared_mariadb")).url
    else:
        path = request.getfixturevalue("lite")
        source = f"sqlite:///{path}"
        if kind == "sqlite3":
            source = Connect(path)

    yield headrace.open(source, query="select id, x, y from samples where 1 = 1 ; ", key="id")


class Connect:
    """A function that connects to a file, and can be pickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, check_same_thread=False)


def _with_table(server: MariaDB) -> MariaDB:
    values = ",".join(f"({3 * number - 300}, {number / 4.0}, {number % 7})" for number in range(ROWS))
    server.run(
        "drop table if exists samples",
        "create table samples (id bigint primary key, x double not null, y int)",
        f"insert into samples values {values}",
    )
    return server


def expected(numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {"x": numbers / 4.0, "y": numbers % 7}


def check_batch(batch: dict[str, Any], numbers: np.ndarray) -> None:
    for name, values in expected(numbers).items():
        np.testing.assert_array_equal(batch[name].numpy(), values)


def test_a_table_is_read_in_order_and_at_random_by_every_library(opened: Any) -> None:
    assert len(opened) == ROWS
    assert opened[5]["id"] == -285
    assert opened[-2]["x"] == (ROWS - 2) / 4.0

    at = 0
    for batch in headrace.DataLoader(opened, batch_size=64):
        check_batch(batch, np.arange(at, at + len(batch["x"])))
        at += len(batch["x"])
    assert at == ROWS

    order = np.random.default_rng(0).permutation(ROWS)
    for start in range(0, ROWS, 500):
        samples = opened.__getitems__(order[start : start + 500].tolist())
        assert [sample["x"] for sample in samples] == (order[start : start + 500] / 4.0).tolist()

    # By now all of it may lie in memory, or not: both deliver the same.
    seen = []
    for batch in headrace.DataLoader(opened, batch_size=128, shuffle=True, seed=3):
        numbers = (batch["x"].numpy() * 4).astype(int)
        check_batch(batch, numbers)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("where", ["postgresql", "sqlite"])
def test_two_workers_read_every_row_once(request: pytest.FixtureRequest, where: str, method: str) -> None:
    if where == "postgresql":
        source = request.getfixturevalue("served").url
    else:
        source = f"sqlite:///{request.getfixturevalue('lite')}"

    data = headrace.open(source, table="samples", key="id")
    # The parent has a connection, which its children must leave alone.
    assert data[0]["y"] == 0
    loader = headrace.DataLoader(data, batch_size=100, num_workers=2, multiprocessing_context=method)
    at = 0
    for batch in loader:
        check_batch(batch, np.arange(at, at + len(batch["x"])))
        at += len(batch["x"])

    assert at == ROWS
    assert data[7]["y"] == 0


@pytest.mark.thorough
def test_a_forked_child_leaves_the_connection_of_its_parent_alone(served: Postgres) -> None:
    data = headrace.open(served.url, table="samples", key="id")
    before = data[4]["x"]
    session = data.reader._database._idle[0].read("select pg_backend_pid() as p").table.column(0)[0].as_py()
    child = os.fork()
    if child == 0:
        right = data[5]["x"] == 5 / 4.0
        # Drops what the parent has opened, in so far as the child holds it.
        del data
        gc.unfreeze()
        gc.collect()
        os._exit(0 if right else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert data[4]["x"] == before
    after = data.reader._database._idle[0].read("select pg_backend_pid() as p").table.column(0)[0].as_py()
    assert session == after


def test_columns_of_every_type_of_postgresql(served: Postgres) -> None:
    served.run("drop type if exists mood cascade", "create type mood as enum ('sad', 'ok')")
    query = """select 1::bigint as id, 2::smallint as a, 3::int as b, 1.5::real as c, 2.5::float8 as d,
        1.25::numeric as e, true as f, 'tèxt' as g, 'v'::varchar as h, '\\x00ff'::bytea as i,
        timestamp '2020-01-02 03:04:05' as j, timestamptz '2020-01-02 03:04:05+00' as k, date '2020-01-02' as l,
        time '00:00:01' as m, '00000000-0000-0000-0000-0000000000ff'::uuid as n, '{"a": 1}'::json as o,
        '{"a":1}'::jsonb as p, array[1.5, 2.5]::real[] as q, array[[1, 2, 3], [4, 5, 6]] as r,
        array[1.5]::numeric[] as s, array[true, false] as t, 'ok'::mood as u"""
    sample = headrace.open(served.url, query=query, key="id")[0]
    moment = int(datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC).timestamp() * 1e6)
    plain = {name: value for name, value in sample.items() if not isinstance(value, np.ndarray)}
    assert plain == {
        "id": 1, "a": 2, "b": 3, "c": 1.5, "d": 2.5, "e": 1.25, "f": True, "g": "tèxt", "h": "v", "i": b"\x00\xff",
        "j": moment, "k": moment, "l": 18263, "m": 1_000_000, "n": str(uuid.UUID(int=255)), "o": '{"a": 1}',
        "p": '{"a": 1}', "u": "ok",
    }  # fmt: skip
    arrays = {name: value for name, value in sample.items() if isinstance(value, np.ndarray)}
    assert {name: value.tolist() for name, value in arrays.items()} == {
        "q": [1.5, 2.5], "r": [[1, 2, 3], [4, 5, 6]], "s": [1.5], "t": [True, False],
    }  # fmt: skip
    assert (arrays["q"].dtype, arrays["r"].dtype) == (np.float32, np.int32)


def test_arrays_of_one_length_are_stacked_and_others_are_padded(served: Postgres) -> None:
    data = headrace.open(served.url, table="samples", key="id")
    batch = data.fetch_batch(np.array([5, 17, 2]), headrace.core.batch_memory.OwnMemory())
    assert batch["v"].tolist() == [[5, 6, 7], [17, 18, 19], [2, 3, 4]]

    query = "select g as id, array_fill(g, array[g]) as v from generate_series(0, 5) g"
    ragged = headrace.open(served.url, query=query, key="id")
    assert str(ragged.schema["v"]) == "int32 x any"
    assert [sample["v"].tolist() for sample in ragged.__getitems__([3, 0])] == [[3, 3, 3], []]


def test_nulls_are_not_a_number_or_an_error_of_their_sample_alone(served: Postgres) -> None:
    served.run(
        "drop table if exists holes",
        "create table holes (id int primary key, x real, y int, t text, v int[], r int[])",
        "insert into holes values (1, null, 1, 'a', '{1,2}', '{1}'), (2, 2, null, 'b', '{1,2}', '{1}'), "
        "(3, 3, 3, null, '{1,2}', '{1}'), (4, 4, 4, 'd', null, '{1}'), (5, 5, 5, 'e', '{1,null}', '{1}'), "
        "(6, 6, 6, 'f', '{1,2}', '{1,null}'), (7, 7, 7, 'g', '{8,9}', '{1,2}')",
    )
    data = headrace.open(served.url, table="holes", key="id")
    assert np.isnan(data[0]["x"])
    assert data[6]["v"].tolist() == [8, 9]
    for number, column in ((1, "y"), (2, "t"), (3, "v"), (4, "v"), (5, "r")):
        with pytest.raises(SampleError, match=rf"row with id = {number + 1}, column '{column}'.*\n.*null"):
            data[number]

    loader = headrace.DataLoader(data, batch_size=7, on_error="skip")
    assert [batch["id"].tolist() for batch in loader] == [[1, 7]]


@pytest.mark.parametrize("kind", ["uuid", "text", "timestamptz", "date"])
def test_keys_need_not_be_numbers(served: Postgres, kind: str) -> None:
    made = {
        "uuid": "cast(lpad(to_hex(g * 7919 % 1000), 32, '0') as uuid)",
        "text": r"'it''s \ \\ % :x ' || (g * 7919 % 1000)",
        "timestamptz": "timestamptz '2020-01-01' + (g * 7919 % 1000) * interval '1 minute 1 microsecond'",
        "date": "date '2020-01-01' + g * 7919 % 1000",
    }[kind]
    served.run(
        "drop table if exists keyed",
        f"create table keyed as select {made} as k, g::int as g from generate_series(0, 999) g",
        "create unique index on keyed (k)",
    )
    with served.connect() as connection:
        order = [row[0] for row in connection.execute("select g from keyed order by k").fetchall()]

    data = headrace.open(served.url, table="keyed", key="k", columns=["g"])
    assert [int(g) for batch in headrace.DataLoader(data, batch_size=33) for g in batch["g"]] == order
    some = np.random.default_rng(0).permutation(1000)[:90].tolist()
    assert [sample["g"] for sample in data.__getitems__(some)] == [order[number] for number in some]
