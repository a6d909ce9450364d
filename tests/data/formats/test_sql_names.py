"""Errors about tables of databases name the column that is at fault, and no other."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.core.errors import FormatError, SampleError, UsageError
from headrace.data.formats.arrow.field_types import field_from
from tests.servers.postgres import Postgres

pytest.importorskip("adbc_driver_sqlite")

NAMES = ["id", "x", "label", "odd"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A table with a column that cannot be part of a sample."""
    path = tmp_path / "names.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t (id integer primary key, x real, label text, odd)")
        connection.executemany("insert into t values (?, ?, ?, null)", [(1, 1.5, "a"), (2, 2.5, "b"), (3, 3.5, "c")])
        connection.commit()
    return f"sqlite:///{path}"


TWICE = "select a.id, a.x, a.label, b.label from t a join t b on a.id = b.id"

FOLLOWED: dict[str, Any] = {"until": 2, "span": 10}


@pytest.mark.parametrize("columns", [["nope"], ["x", "nope"], ["odd", "nope"], "nope"])
def test_a_column_that_is_not_there_is_named_with_all_that_are(url: str, columns: Any) -> None:
    with pytest.raises(UsageError, match="no such columns") as caught:
        headrace.open(url, table="t", key="id", columns=columns)
    text = str(caught.value)
    assert "found:    'nope'" in text
    assert f"expected: some of {', '.join(NAMES)}" in text
    assert "'odd'" not in text


@pytest.mark.parametrize("columns", [["x", "id"], ("x", "id"), {"x": 1, "id": 2}])
def test_names_come_in_the_order_asked_for(url: str, columns: Any) -> None:
    for given in (columns, iter(columns)):
        assert headrace.open(url, table="t", key="id", columns=given).schema.names == ("x", "id")


@pytest.mark.parametrize("columns", [5, [], ["x", "x"]])
def test_what_are_no_names_is_a_wrong_argument(url: str, columns: Any) -> None:
    with pytest.raises(UsageError, match="wrong argument"):
        headrace.open(url, table="t", key="id", columns=columns)


def test_of_a_growing_table_too(url: str) -> None:
    with pytest.raises(UsageError, match="no such columns") as caught:
        next(iter(headrace.DataLoader(headrace.follow(url, table="t", key="id", columns=["x", "nope"], **FOLLOWED))))
    assert "found:    'nope'" in str(caught.value)
    assert f"some of {', '.join(NAMES)}" in str(caught.value)


def test_a_column_that_cannot_be_part_of_a_sample_is_named_if_it_is_asked_for(url: str) -> None:
    with pytest.raises(FormatError, match="column 'odd'"):
        headrace.open(url, table="t", key="id")
    with pytest.raises(FormatError, match="column 'odd'"):
        headrace.open(url, table="t", key="id", columns=["x", "odd"])
    assert len(headrace.open(url, table="t", key="id", columns=["x"])) == 3


def test_a_row_that_is_gone_is_no_fault_of_a_column(url: str) -> None:
    data = headrace.open(url, table="t", key="id", columns=["label", "x"])
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("delete from t where id = 2")
        connection.commit()
    with pytest.raises(SampleError, match="row with id = 2") as caught:
        data[1]
    assert "label" not in str(caught.value)
    assert "deleted" in str(caught.value)


@pytest.mark.parametrize("column", ["id", "x"])
def test_names_that_come_twice_matter_where_they_are_asked_for(shared_postgres: Postgres, column: str) -> None:
    shared_postgres.run(
        "drop table if exists t",
        "create table t as select g as id, g / 2.0::float8 as x, g::text as label from generate_series(1, 3) g",
    )
    assert len(headrace.open(shared_postgres.url, query=TWICE, key="id", columns=[column])) == 3
    for columns in (None, ["label"]):
        with pytest.raises(UsageError, match="two columns have the same name") as caught:
            headrace.open(shared_postgres.url, query=TWICE, key="id", columns=columns)
        assert "'label'" in str(caught.value)
    with pytest.raises(UsageError, match="two columns have the same name") as caught:
        headrace.open(
            shared_postgres.url, query=f"select *, x as id from ({TWICE}) q".replace(", b.label", ""), key="id"
        )
    assert "'id'" in str(caught.value)


def test_names_that_come_twice_in_a_growing_table_are_told_before_a_query(shared_postgres: Postgres) -> None:
    shared_postgres.run(
        "drop table if exists t",
        "create table t as select g as id, g / 2.0::float8 as x, g::text as label from generate_series(1, 3) g",
    )
    with pytest.raises(UsageError, match="two columns have the same name"):
        next(iter(headrace.DataLoader(headrace.follow(shared_postgres.url, query=TWICE, key="id", **FOLLOWED))))


def test_a_key_below_zero_is_named_as_the_user_names_it(shared_postgres: Postgres) -> None:
    shared_postgres.run("drop table if exists below", "create table below as select -3::bigint as id, 1.5::float8 as x")
    with pytest.raises(FormatError, match="positions are 0 or more") as caught:
        next(
            iter(
                headrace.DataLoader(
                    headrace.follow(shared_postgres.url, table="below", key="id", settle=0.1, **FOLLOWED)
                )
            )
        )
    assert "column 'id'" in str(caught.value)


def test_an_interval_is_left_out_of_a_growing_table_and_of_files(shared_postgres: Postgres, tmp_path: Path) -> None:
    shared_postgres.run(
        "drop table if exists spans",
        "create table spans as select g as id, g::float8 as x, interval '1 day' as long from generate_series(1, 2) g",
    )
    data = headrace.follow(shared_postgres.url, table="spans", key="id", settle=0.1, **FOLLOWED)
    with pytest.warns(UserWarning, match="long"):
        assert [batch["x"].tolist() for batch in headrace.DataLoader(data, batch_size=2)] == [[1.0, 2.0]]
    assert field_from("long", pa.month_day_nano_interval()) is None
    table = pa.table({"x": [1.5, 2.5], "long": pa.array([(1, 2, 3), (4, 5, 6)], pa.month_day_nano_interval())})
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.warns(UserWarning, match="long"):
        assert float(headrace.open(tmp_path / "x.arrow")[1]["x"]) == 2.5
