"""Several transactions that write to a growing table at once: no row is lost, none comes twice."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.sources.sql import log as log_module
from headrace.sources.sql.log import SQLLog, SQLSource
from tests.servers.postgres import Postgres

WRITERS = 4
LIMIT = 1 << 20

STEPS = ["insert", "insert", "insert three", "gap", "savepoint", "back", "commit", "commit", "roll back", "prepare"]
Step = tuple[str, int]
"""What is done, and by which writer; "look": the reader polls."""

steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(STEPS), st.integers(0, WRITERS - 1)),
        st.just(("look", 0)),
        st.just(("finish", 0)),
    ),
    max_size=40,
)


class Writer:
    """A connection that does one step after the other."""

    def __init__(self, server: Postgres, number: int) -> None:
        self._connection = server.connect()
        self._number = number
        self._prepared = 0
        self._is_open = False
        self._has_savepoint = False

    def take(self, step: str) -> None:
        """Takes a step; what is not possible now does nothing."""
        if step in ("insert", "insert three", "gap", "savepoint") and not self._is_open:
            self._run("begin")
            self._is_open = True
        if step == "insert":
            self._run("insert into growing (x) values (1)")
        elif step == "insert three":
            self._run("insert into growing (x) select g from generate_series(1, 3) g")
        elif step == "gap":
            self._run("select nextval(pg_get_serial_sequence('growing', 'id'))")
        elif step == "savepoint":
            self._run("savepoint here")
            self._has_savepoint = True
        elif step == "back" and self._is_open and self._has_savepoint:
            self._run("rollback to savepoint here")
        elif step in ("commit", "roll back", "prepare") and self._is_open:
            self._end(step)

    def finish(self) -> None:
        """Commits what is open, and what is prepared."""
        self.take("commit")
        for number in range(self._prepared):
            self._run(f"commit prepared 'w{self._number}-{number}'")
        self._prepared = 0

    def finish_prepared(self) -> None:
        """Commits the transaction that was prepared last."""
        if self._prepared and not self._is_open:
            self._prepared -= 1
            self._run(f"commit prepared 'w{self._number}-{self._prepared}'")

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def _end(self, step: str) -> None:
        if step == "prepare":
            self._run(f"prepare transaction 'w{self._number}-{self._prepared}'")
            self._prepared += 1
        else:
            self._run(step.replace(" ", ""))
        self._is_open = False
        self._has_savepoint = False

    def _run(self, statement: str) -> None:
        self._connection.execute(statement)


@pytest.fixture
def table(shared_postgres: Postgres) -> Postgres:
    """A table whose keys are drawn by its inserts."""
    shared_postgres.run(
        "drop table if exists growing",
        "create table growing (id bigint generated always as identity primary key, x real)",
    )
    return shared_postgres


@pytest.fixture
def writers(table: Postgres) -> Iterator[list[Writer]]:
    """Those who write."""
    all_of_them = [Writer(table, number) for number in range(WRITERS)]
    yield all_of_them
    for writer in all_of_them:
        writer.finish()
        writer.close()


def opened(server: Postgres, **given: Any) -> contextlib.closing[SQLLog]:
    log = SQLSource(server.url, **{"table": "growing", "key": "id", **given}).open()
    log.seek({0: 0})
    return contextlib.closing(log)


def polled(log: SQLLog) -> list[int]:
    """What may be taken now."""
    return [key for records in log.poll(0.0, LIMIT) for key in records.positions]


def play(server: Postgres, writers: list[Writer], taken: list[Step], **given: Any) -> None:
    """Takes the steps one after the other, and compares what the reader got with what is in the table."""
    server.run("truncate growing restart identity")
    keys: list[int] = []
    with opened(server, **given) as log:
        for step, number in taken:
            if step == "look":
                keys += polled(log)
            elif step == "finish":
                writers[number].finish_prepared()
            else:
                writers[number].take(step)
        for writer in writers:
            keys += polled(log)
            writer.finish()
        keys += polled(log)
        while not log.at_end():
            keys += polled(log)

    with server.connect() as connection:
        rows = connection.execute("select id from growing order by id").fetchall()
    assert keys == [row[0] for row in rows]


no_fixture_problem = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

BEHIND_A_YOUNGER_ONE: list[Step] = [
    ("gap", 0), ("insert", 1), ("commit", 1), ("look", 0), ("insert", 0), ("insert", 1), ("commit", 1), ("look", 0),
    ("commit", 0), ("look", 0),
]  # fmt: skip
"""A transaction inserts behind the insert of a younger one, which commits first."""

PREPARED_MEANWHILE: list[Step] = [
    ("insert", 0), ("insert", 1), ("commit", 1), ("look", 0), ("prepare", 0), ("look", 0), ("look", 0), ("finish", 0),
]  # fmt: skip


@pytest.mark.thorough
@given(taken=steps)
@example(taken=BEHIND_A_YOUNGER_ONE)
@example(taken=PREPARED_MEANWHILE)
@settings(no_fixture_problem, max_examples=40)
def test_writers_that_interleave_lose_no_row(taken: list[Step], table: Postgres, writers: list[Writer]) -> None:
    play(table, writers, taken)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "given_more", [{}, {"table": None, "query": "select id, x from growing"}], ids=["table", "query"]
)
@given(taken=steps)
@settings(no_fixture_problem, max_examples=2000)
def test_many_writers_that_interleave_lose_no_row(
    taken: list[Step], given_more: dict[str, Any], table: Postgres, writers: list[Writer]
) -> None:
    play(table, writers, taken, **given_more)


def test_rows_of_a_partition_and_of_a_child_wait_for_their_writers(table: Postgres) -> None:
    """Those who insert there lock neither the partitioned table nor the parent."""
    table.run(
        "drop table if exists parted, parent cascade",
        "create table parted (id bigint, x real) partition by range (id)",
        "create table parted_low partition of parted for values from (0) to (1000)",
        "create table parent (id bigint, x real)",
        "create table child () inherits (parent)",
    )
    for whole, part in (("parted", "parted_low"), ("parent", "child")):
        with opened(table, table=whole) as log, table.connect() as slow:
            slow.autocommit = False
            slow.execute(f"insert into {part} values (1, 1)")
            table.run(f"insert into {part} values (2, 1)")
            assert polled(log) == []
            assert polled(log) == []
            slow.commit()
            assert polled(log) == [1, 2]


def test_who_writes_to_another_table_is_not_waited_for(table: Postgres) -> None:
    table.run("drop table if exists other", "create table other (x real)")
    with opened(table) as log, table.connect() as slow:
        slow.autocommit = False
        slow.execute("insert into other values (1)")
        table.run("insert into growing (x) values (1)")
        assert polled(log) == [1]


def test_what_may_be_taken_stays_so_whoever_writes_later(table: Postgres) -> None:
    with opened(table) as log, table.connect() as slow:
        table.run("insert into growing (x) select g from generate_series(1, 600) g")
        first = polled(log)
        assert 0 < len(first) < 600
        slow.autocommit = False
        slow.execute("insert into growing (x) values (1)")
        while len(first) < 600:
            more = polled(log)
            assert more
            first += more
        assert first == list(range(1, 601))


def test_the_log_says_for_whom_rows_wait(
    table: Postgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "LONG", 0.0)
    with opened(table) as log, table.connect() as slow, caplog.at_level(logging.WARNING, "headrace"):
        slow.autocommit = False
        slow.execute("insert into growing (x) values (1)")
        name = slow.execute("select virtualtransaction from pg_locks where pid = pg_backend_pid() limit 1").fetchone()[
            0
        ]
        table.run("insert into growing (x) values (1)")
        for _ in range(3):
            assert polled(log) == []
        assert [record.getMessage() for record in caplog.records if name in record.getMessage()] == [
            record.getMessage() for record in caplog.records
        ]
        assert len(caplog.records) == 1
        slow.commit()
        assert polled(log) == [1, 2]
