"""Tables that grow, read as logs."""

from __future__ import annotations

import contextlib
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy

from headrace.core.errors import FormatError, StorageError, UsageError
from headrace.sources.sql.log import SQLLog, SQLSource
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import PASSWORD, Postgres

pytestmark = pytest.mark.thorough

LIMIT = 1 << 20


def keys_of(log: SQLLog, count: int, limit: int = LIMIT) -> list[int]:
    """Polls until so many keys have come, and returns them."""
    keys: list[int] = []
    while len(keys) < count:
        polled = log.poll(30.0, limit)
        assert polled, "nothing came"
        for records in polled:
            assert list(records.positions) == records.values.column("id").to_pylist()
            assert records.following == records.positions[-1] + 1
            keys += records.positions
    return keys


@pytest.fixture
def table(shared_postgres: Postgres) -> Postgres:
    """A table that grows, with 1,000 rows whose keys are 0, 2, 4, ..."""
    shared_postgres.run(
        "drop table if exists growing",
        "create table growing (id bigint primary key, x real, t text, born xid8 default pg_current_xact_id())",
        "insert into growing select 2 * g, g, repeat('t', 100) from generate_series(0, 999) g",
    )
    return shared_postgres


@pytest.fixture
def log(table: Postgres) -> Iterator[SQLLog]:
    """The log of that table, without waiting."""
    source = pickle.loads(pickle.dumps(SQLSource(table.url, table="growing", key="id", columns=["id", "t"], settle=0)))
    with contextlib.closing(source.open()) as opened:
        yield opened


def test_all_rows_come_once_in_pages_of_about_the_limit(log: SQLLog) -> None:
    assert (log.partitions(), log.ends()) == ([0], {0: 1999})
    log.seek(log.resolve("earliest"))
    assert log.at_end() == set()
    keys: list[int] = []
    while not log.at_end():
        for records in log.poll(10.0, 10_000):
            assert isinstance(records.values, pa.Table)
            assert records.values.schema.names == ["id", "t"]
            assert records.values.nbytes <= 20_000
            keys += records.positions

    assert keys == list(range(0, 2000, 2))
    assert log.poll(0.0, LIMIT) == []
    log.commit({0: 2000})


def test_a_row_larger_than_the_limit_comes_all_the_same(log: SQLLog) -> None:
    log.seek({0: 7})
    assert [records.positions for records in log.poll(10.0, 1)] == [[8]]
    assert [records.positions for records in log.poll(10.0, 1)] == [[10]]


def test_rows_that_are_inserted_or_deleted_later(log: SQLLog, table: Postgres) -> None:
    log.seek(log.resolve("latest"))
    assert log.poll(0.0, LIMIT) == []
    assert log.at_end() == {0}
    inserting = threading.Thread(target=table.run, args=("insert into growing values (3001, 1, 'a'), (3000, 1, 'b')",))
    inserting.start()
    assert keys_of(log, 2) == [3000, 3001]
    inserting.join()

    table.run("delete from growing where id < 100")
    log.seek({0: 0})
    assert keys_of(log, 952)[:2] == [100, 102]


def test_a_late_commit_is_not_lost_with_a_column_of_transactions(table: Postgres) -> None:
    source = SQLSource(table.url, table="growing", key="id", xid="born")
    with contextlib.closing(source.open()) as log, table.connect() as slow:
        assert log.ends() == {0: 1999}
        log.seek({0: 1999})
        slow.autocommit = False
        slow.execute("insert into growing values (4000, 1, 'slow')")
        table.run("insert into growing values (4001, 1, 'quick')")
        assert log.poll(0.3, LIMIT) == []
        slow.commit()
        polled = log.poll(30.0, LIMIT)
        assert [records.positions for records in polled] == [[4000, 4001]]
        assert polled[0].values.schema.names == ["id", "x", "t"]


def test_a_late_commit_is_not_lost_while_rows_settle(table: Postgres) -> None:
    source = SQLSource(table.url, table="growing", key="id", settle=1.0)
    with contextlib.closing(source.open()) as log, table.connect() as slow:
        log.seek({0: 1999})
        slow.autocommit = False
        slow.execute("insert into growing values (4000, 1, 'slow')")
        table.run("insert into growing values (4001, 1, 'quick')")
        assert log.poll(0.0, LIMIT) == []
        assert log.at_end() == set()
        slow.commit()
        assert keys_of(log, 2) == [4000, 4001]
        assert log.poll(0.0, LIMIT) == []
        assert log.at_end() == {0}


def test_a_killed_server_is_waited_for(own_postgres: Postgres) -> None:
    own_postgres.run("create table growing as select g::bigint as id from generate_series(0, 99999) g")
    with contextlib.closing(SQLSource(own_postgres.url, table="growing", key="id", settle=0).open()) as log:
        log.seek({0: 0})
        keys = keys_of(log, 1)
        own_postgres.kill()
        own_postgres.start()
        keys += keys_of(log, 100_000 - len(keys))
        assert keys == list(range(100_000))


def test_tables_of_sqlite_and_mariadb(tmp_path: Path, shared_mariadb: MariaDB) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'live.db'}")
    metadata = sqlalchemy.MetaData()
    made = sqlalchemy.Table(
        "growing",
        metadata,
        sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True),
        sqlalchemy.Column("x", sqlalchemy.Float),
    )
    metadata.create_all(engine)
    shared_mariadb.run("drop table if exists growing", "create table growing (id int primary key, x double)")
    for url in (f"sqlite:///{tmp_path / 'live.db'}", shared_mariadb.url):
        with contextlib.closing(SQLSource(url, table="growing", key="id", settle=0).open()) as log:
            log.seek(log.resolve("earliest"))
            assert log.poll(0.0, LIMIT) == []
            assert (log.at_end(), log.ends()) == ({0}, {0: 0})
            if url.startswith("sqlite"):
                with engine.begin() as connection:
                    connection.execute(made.insert(), [{"id": key, "x": key / 2} for key in (5, 7)])
            else:
                shared_mariadb.run("insert into growing values (5, 2.5), (7, 3.5)")
            assert keys_of(log, 2) == [5, 7]
    engine.dispose()


def test_wrong_calls(table: Postgres, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no query"):
        SQLSource(table.url, key="id")
    with pytest.raises(UsageError, match="settle"):
        SQLSource(table.url, table="growing", key="id", settle=-1)
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")):
        pass
    (tmp_path / "x.db").touch()
    with pytest.raises(UsageError, match="a column of PostgreSQL"):
        SQLSource(f"sqlite:///{tmp_path / 'x.db'}", table="growing", key="id", xid="born")
    for given, said in (
        ({"key": "t"}, "position in a log"),
        ({"key": None}, "no key"),
        ({"xid": "z"}, "no such column"),
    ):
        with pytest.raises(UsageError, match=said):
            SQLSource(table.url, table="growing", **{"key": "id", **given}).open()
    with pytest.raises(FormatError, match="0 or more"):
        SQLSource(table.url, query="select -5 as id", key="id").open()
    with contextlib.closing(SQLSource(table.url, table="growing", key="id").open()) as log:
        for start in (1.5, "yesterday", {1: 5}, {0: -1}):
            with pytest.raises(UsageError, match="start"):
                log.resolve(start)


def test_secrets_are_shown_nowhere(table: Postgres) -> None:
    source = SQLSource(table.url, table="growing", key="id")
    with contextlib.closing(source.open()) as log:
        for thing in (source, vars(source), source.place, log, log.identity):
            assert PASSWORD not in repr(thing)

    wrong = SQLSource(table.url.replace(PASSWORD, "another-word"), table="growing", key="id")
    with pytest.raises(StorageError) as failure:
        wrong.open()
    assert "another-word" not in str(failure.value)
