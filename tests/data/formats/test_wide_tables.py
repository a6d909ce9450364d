"""The work for a table grows with its columns, not with their square."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import headrace
from headrace.core.batch_memory import OwnMemory


def steps_of(action: Callable[[], Any]) -> int:
    """Returns how many lines of headrace an action runs: a measure of work that no other process changes."""
    count = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if "headrace" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def table(folder: Path, columns: int, cell: str) -> Path:
    path = folder / f"{columns}.csv"
    rows = [",".join(f"c{number}" for number in range(columns)), *[",".join([cell] * columns)] * 3]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("cell", ["1", "a"])
def test_four_times_the_columns_take_four_times_the_work(cell: str, tmp_path: Path) -> None:
    work = []
    for columns in (250, 1000):
        path = table(tmp_path, columns, cell)

        def use(path: Path = path) -> None:
            data = headrace.open(path)
            assert len(data[1]) == len(data.schema)
            data.fetch_batch([0, 1], OwnMemory())
            data.astype()

        work.append(steps_of(use))
    assert work[1] < 5 * work[0]


def test_columns_of_texts_that_differ_only_in_length_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x,y,z\na,bb,c\nbb,a,dd\n")
    batch = headrace.open(tmp_path / "data.csv").fetch_batch([0, 1], OwnMemory())
    assert batch == {"x": ["a", "bb"], "y": ["bb", "a"], "z": ["c", "dd"]}
