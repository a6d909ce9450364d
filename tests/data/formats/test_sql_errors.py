"""Tables of databases: what goes wrong, and what is said of it."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import threading
import traceback
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import DatasetNotFoundError, FormatError, HeadraceError, SampleError, StorageError, UsageError
from headrace.data.formats.sql.read_ahead import predicted
from headrace.data.formats.sql.tables import plan
from headrace.sources.sql.targets import secrets_of
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import PASSWORD, Postgres

pytestmark = pytest.mark.thorough


@pytest.fixture
def lite(tmp_path: Path) -> Path:
    """A file of SQLite in which a thing or two is odd."""
    path = tmp_path / "odd %20#.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table odd (id integer primary key, x real, y integer, t text, n, b blob)")
        rows = [(1, 1, 1, "a", None, b"1"), (2, 2.5, "word", "b", None, b"2"), (3, 3, 3, "c", None, b"3")]
        connection.executemany("insert into odd values (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("create table empty (id integer primary key, x real, t text)")
        connection.commit()
    return path


def test_a_row_deleted_after_opening_is_named_and_the_others_are_read(shared_postgres: Postgres) -> None:
    shared_postgres.run(
        "drop table if exists shrinking",
        "create table shrinking as select g as id, g * 2 as x from generate_series(10, 209) g",
    )
    data = headrace.open(shared_postgres.url, table="shrinking", key="id")
    shared_postgres.run("delete from shrinking where id = 50", "insert into shrinking values (9, 0), (1000, 0)")
    assert len(data) == 200
    with pytest.raises(SampleError, match=r"sample 40, row with id = 50(.|\n)*deleted"):
        data[40]
    with pytest.raises(SampleError, match="id = 50"):
        data.__getitems__(list(range(30, 60)))

    loader = headrace.DataLoader(data, batch_size=20, on_error="skip")
    found = [int(x) for batch in loader for x in batch["x"]]
    assert found == [2 * key for key in range(10, 210) if key != 50]


def test_empty_tables_and_tables_of_one_row(shared_postgres: Postgres) -> None:
    query = "select 1 as id, 2.5::real as x where {}"
    empty = headrace.open(shared_postgres.url, query=query.format("false"), key="id")
    assert (len(empty), list(headrace.DataLoader(empty))) == (0, [])
    one = headrace.open(shared_postgres.url, query=query.format("true"), key="id")
    assert [batch["x"].tolist() for batch in headrace.DataLoader(one, batch_size=4)] == [[2.5]]


def test_keys_that_are_none(shared_postgres: Postgres) -> None:
    cases = {
        "select 1 as id union all select 1": "1 in more than one row",
        "select null::int as id union all select 1": "1 rows of 2 without a value",
        "select 'a' as id union all select 'a'": "'a' in more than one row",
    }
    for query, found in cases.items():
        with pytest.raises(FormatError, match=found):
            headrace.open(shared_postgres.url, query=query, key="id")

    for query in ("select 1.5::real as id", "select true as id", "select '\\x00'::bytea as id"):
        with pytest.raises(UsageError, match="cannot be a key"):
            headrace.open(shared_postgres.url, query=query, key="id")


def test_wrong_calls_say_what_to_do(shared_postgres: Postgres, tmp_path: Path) -> None:
    url = shared_postgres.url
    cases: list[tuple[object, dict[str, object], str]] = [
        (url, {}, "there is no query"),
        (url, {"query": "select 1 as id", "table": "x", "key": "id"}, "said twice"),
        (url, {"query": "select 1 as id, 2 as x"}, "this looks like one: key='id'"),
        (url, {"query": "select 1 as a, 2 as a", "key": "a"}, "same name"),
        (url, {"query": "select 1 as a", "key": "b"}, "no such key"),
        (url, {"query": "select 1 as a", "key": "a", "columns": ["z"]}, "no such columns"),
        (url, {"query": "", "key": "a"}, "a text"),
        (str(tmp_path), {"table": "x"}, "no database"),
        ("sqlite://", {"table": "x", "key": "id"}, "three slashes"),
        ("sqlite:///:memory:", {"table": "x", "key": "id"}, "in memory"),
    ]
    for source, given, said in cases:
        with pytest.raises(UsageError, match=said):
            headrace.open(source, **given)  # type: ignore[call-overload]

    with shared_postgres.connect() as connection, pytest.raises(UsageError, match="a function that connects"):
        headrace.open(connection)
    with pytest.raises(DatasetNotFoundError, match="four an absolute one"):
        headrace.open(f"sqlite:///{tmp_path / 'none.db'}", table="x", key="id")
    for query, type_of_column in (("interval '1 day'", "extract"), ("point '(1,2)'", "cast"), ("array['a']", "cast")):
        with pytest.raises(FormatError, match=f"cannot be part of a sample(.|\n)*{type_of_column}"):
            headrace.open(url, query=f"select 1 as id, {query} as x", key="id")
    assert len(headrace.open(url, query="select 1 as id, point '(1,2)' as x", key="id", columns=["id"])) == 1


def test_what_the_database_refuses_is_told_without_secrets(shared_postgres: Postgres, shared_mariadb: MariaDB) -> None:
    for url in (shared_postgres.url, shared_postgres.alchemy_url, shared_mariadb.url):
        for given in ({"table": "nope"}, {"query": "selec 1"}, {"query": "select nope from nope"}):
            with pytest.raises(StorageError, match="refused a query") as failure:
                headrace.open(url, key="id", **given)
            assert PASSWORD not in "".join(traceback.format_exception(failure.value))

        for address in (url.replace(PASSWORD, "another-word"), url.replace("reader:", "another-user:")):
            with pytest.raises(StorageError, match="cannot connect") as failure:
                headrace.open(address, table="x", key="id")
            said = "".join(traceback.format_exception(failure.value))
            assert "another-" not in said
            assert PASSWORD not in said
            assert "reader" not in str(failure.value)


def test_nothing_that_is_shown_has_the_password(shared_postgres: Postgres) -> None:
    data = headrace.open(shared_postgres.url, query="select 1 as id", key="id")
    reader = data.reader
    shown = [data, reader, reader._database, reader._database.target, reader._relation, vars(reader), data.place]  # type: ignore[attr-defined]
    for thing in (*shown, data.fingerprint(), headrace.DataLoader(data).state_dict()):
        assert PASSWORD not in repr(thing)
        assert "reader:" not in repr(thing)


def test_percent_signs_colons_and_comments_are_left_alone(shared_postgres: Postgres, shared_mariadb: MariaDB) -> None:
    query = "select 1 as id, '100%s :x %(y)s' as t where 'abc' like '%b%' -- :done 50%"
    for url in (shared_postgres.url, shared_postgres.alchemy_url, shared_mariadb.url):
        assert headrace.open(url, query=query, key="id")[0]["t"] == "100%s :x %(y)s"


def test_odd_values_of_sqlite_are_told_of_their_rows(lite: Path) -> None:
    data = headrace.open(f"sqlite:///{lite}", table="odd", key="id", columns=["id", "x", "t", "b"])
    assert data[1] == {"id": 2, "x": 2.5, "t": "b", "b": b"2"}
    assert [sample["x"] for sample in data.__getitems__([2, 0])] == [3.0, 1.0]
    with pytest.raises(FormatError, match="no value in the rows"):
        headrace.open(f"sqlite:///{lite}", table="odd", key="id", columns=["id", "n"])

    empty = headrace.open(f"sqlite:///{lite}", table="empty", key="id")
    assert (len(empty), str(empty.schema["x"]), str(empty.schema["t"])) == (0, "float64", "text")


def test_a_value_of_another_type_is_an_error_of_its_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "late.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table late (id integer primary key, y integer, z)")
        rows = [(number, number, number) for number in range(3000)]
        connection.executemany("insert into late values (?, ?, ?)", rows)
        connection.execute("update late set z = 'word' where id = 2500")
        connection.commit()

    data = headrace.open(f"sqlite:///{path}", table="late", key="id")
    assert data[2499]["z"] == 2499
    with pytest.raises(SampleError, match=r"id = 2500, column 'z'(.|\n)*'word' of type str"):
        data[2500]
    found = [int(z) for batch in headrace.DataLoader(data, batch_size=500, on_error="skip") for z in batch["z"]]
    assert found == [number for number in range(3000) if number != 2500]


def test_a_server_that_is_killed_and_started_again_is_waited_for(own_postgres: Postgres) -> None:
    own_postgres.run("create table samples as select g as id, g * 2 as x from generate_series(0, 99999) g")
    data = headrace.open(own_postgres.url, table="samples", key="id")
    found: list[int] = []
    over = threading.Event()

    def start_again() -> None:
        own_postgres.start()
        # The server ends with the thread that has started it.
        over.wait()

    starting = threading.Thread(target=start_again)
    try:
        for number, batch in enumerate(headrace.DataLoader(data, batch_size=500)):
            found += batch["x"].tolist()
            if number == 20:
                own_postgres.kill()
                starting.start()
        assert found == list(range(0, 200000, 2))
    finally:
        over.set()
        starting.join()


def test_a_server_that_stays_away_is_said_and_an_error_without_secrets(
    own_postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from headrace.sources.sql import database
    from headrace.storage.stores.retries import RetryLimits

    monkeypatch.setattr("headrace.core.outage.AFTER", 0.0)
    monkeypatch.setattr(database, "LIMITS", RetryLimits(retries=3, seconds=5.0, first_wait=0.01, longest_wait=0.01))
    own_postgres.run("create table samples as select g as id from generate_series(0, 99) g")
    data = headrace.open(own_postgres.url, table="samples", key="id")
    own_postgres.kill()
    with pytest.raises(StorageError, match=r"cannot connect(.|\n)*4 tries") as failure:
        data[5]
    assert PASSWORD not in "".join(traceback.format_exception(failure.value))
    (said,) = [record.getMessage() for record in caplog.records]
    assert "has not answered" in said
    assert PASSWORD not in said
    own_postgres.start()
    assert data[5]["id"] == 5


def test_words_that_are_no_secrets_stay_in_errors() -> None:
    url = "postgresql://me:hidden-word@host/db?sslmode=disable&connect_timeout=10&sslpassword=disabled-x&token=abc"
    assert secrets_of(url).words == ("hidden-word", "disabled-x", "abc")


@pytest.mark.thorough
def test_a_million_rows_take_little_memory(shared_postgres: Postgres) -> None:
    shared_postgres.run(
        "create table million as select g::bigint as id, g * 0.5::float8 as x, repeat('t', 100) as t "
        "from generate_series(0, 999999) g",
        "create unique index on million (id)",
    )
    data = headrace.open(shared_postgres.url, table="million", key="id")
    tracemalloc.start()
    total = 0
    for batch in headrace.DataLoader(data, batch_size=1000):
        total += int(batch["id"].sum())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    shared_postgres.run("drop table million")
    assert total == 999_999 * 500_000
    assert peak < 64 << 20
    assert len(pickle.dumps(data)) < 9_000_000


def test_how_rows_are_read_is_planned() -> None:
    numbers = np.array([1, 2, 50, *range(100, 160, 3), 900])
    runs, single = plan(numbers)
    assert runs == [(100, 158)]
    assert single.tolist() == [1, 2, 50, 900]
    assert predicted((0, 10), 10, 45, 1000) == [(10, 50)]
    assert predicted((0, 10), 40, 30, 100) == [(40, 50), (80, 90)]
    assert predicted((90, 100), 10, 45, 100) == []
    assert predicted((80, 90), 10, 45, 95) == [(90, 95)]
    assert issubclass(SampleError, HeadraceError)
