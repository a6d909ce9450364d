"""Databases on the command line."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import headrace


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.thorough
def test_a_table_is_inspected_and_packed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table samples (id integer primary key, x real, t text)")
        rows = [(3 * number, number / 2, f"row {number}") for number in range(100)]
        connection.executemany("insert into samples values (?, ?, ?)", rows)
        connection.commit()

    url = f"sqlite:///{path}"
    shown = run("inspect", url, "--table", "samples", "--key", "id", "--json")
    about = json.loads(shown.stdout)
    assert (about["samples"], about["format"], [column["name"] for column in about["columns"]]) == (
        100, "sql", ["id", "x", "t"],
    )  # fmt: skip

    made = run(
        "pack", url, str(tmp_path / "packed"), "--query", "select id, x from samples where x < 10", "--key", "id"
    )
    assert made.returncode == 0, made.stderr
    packed = headrace.open(tmp_path / "packed")
    assert [(int(sample["id"]), float(sample["x"])) for sample in packed] == [row[:2] for row in rows[:20]]

    without = run("inspect", url, "--table", "samples")
    assert (without.returncode, "this looks like one: key='id'" in without.stderr) == (2, True)


def test_a_table_is_packed_from_python(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table samples (id integer primary key, x real)")
        connection.executemany("insert into samples values (?, ?)", [(number, number / 2) for number in range(50)])
        connection.commit()

    made = headrace.pack(f"sqlite:///{path}", tmp_path / "packed", table="samples", key="id", workers=2)
    assert made.samples == 50
    assert [float(sample["x"]) for sample in headrace.open(made.target)] == [number / 2 for number in range(50)]
