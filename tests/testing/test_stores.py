"""Stores that hang up and are slow give the same bytes in the end."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from headrace.testing import FlakyFileSystem, SlowFileSystem
from tests.testing.jobs import run

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "photo.jpg"
    path.write_bytes(CONTENT)
    return str(path)


def tried(read: Callable[[], bytes], times: int) -> list[str]:
    got = []
    for _ in range(times):
        try:
            got.append("right" if read() == CONTENT else "wrong")
        except OSError as error:
            got.append(type(error).__name__)
    return got


def test_opens_and_reads_fail_in_turn(file: str) -> None:
    fs = FlakyFileSystem(every=3)  # a file costs an open and a read
    assert tried(lambda: fs.cat_file(file), 6) == ["right", "ConnectionResetError"] * 3
    assert (fs.attempts.of("call"), fs.attempts.of("fault")) == (9, 3)


def test_the_failures_end_after_so_many_times(file: str) -> None:
    fs = FlakyFileSystem(every=1, times=2, error=TimeoutError("no answer"))
    assert tried(lambda: fs.cat_file(file), 4) == ["TimeoutError", "TimeoutError", "right", "right"]


def test_a_read_that_failed_can_be_tried_again_on_the_open_file(file: str) -> None:
    fs = FlakyFileSystem(every=2, times=1)
    with fs.open(file, block_size=1000) as opened:
        with pytest.raises(ConnectionResetError):
            opened.read(100)
        assert (opened.tell(), opened.read(100), opened.tell()) == (0, CONTENT[:100], 100)
        assert opened.seek(-10, 2) == len(CONTENT) - 10
        assert opened.read() == CONTENT[-10:]


def read_once(fs: FlakyFileSystem, file: str) -> None:
    fs.cat_file(file)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_count_together(file: str, method: str) -> None:
    fs = FlakyFileSystem(every=3)
    assert run(read_once, fs, file, method=method) == 0
    with pytest.raises(ConnectionResetError):
        fs.cat_file(file)


@pytest.mark.parametrize("fs", [FlakyFileSystem(every=1000), SlowFileSystem()], ids=["flaky", "slow"])
def test_a_wrapper_without_faults_does_what_the_wrapped_file_system_does(
    fs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fs.makedirs("a/b")
    fs.makedirs("a/b", exist_ok=True)
    fs.pipe_file("a/b/one.txt", b"one\ntwo\n")
    with fs.open("a/b/two.txt", "w", encoding="utf-8") as opened:
        opened.write("zwölf\n")
    with fs.open("a/b/two.txt", "r", encoding="utf-8") as opened:
        assert list(opened) == ["zwölf\n"]
    names = [f"{tmp_path}/a/b/one.txt", f"{tmp_path}/a/b/two.txt"]
    assert sorted(fs.find("a")) == sorted(fs.glob("a/**/*.txt")) == sorted(fs.ls("a/b", detail=False)) == names
    assert (fs.size("a/b/one.txt"), fs.isdir("a/b"), fs.exists("a/c")) == (8, True, False)
    assert fs.cat_file("a/b/one.txt", 4, 7) == b"two"
    assert fs.modified("a/b/one.txt") <= fs.modified("a/b/two.txt")
    fs.mv("a/b/one.txt", "a/three.txt")
    fs.get_file("a/three.txt", "here.txt")
    assert (tmp_path / "here.txt").read_bytes() == b"one\ntwo\n"
    fs.mkdir("d")
    fs.rmdir("d")
    fs.rm("a", recursive=True)
    assert [path.name for path in tmp_path.iterdir()] == ["here.txt"]
    assert pickle.loads(pickle.dumps(fs)).cat_file("here.txt") == b"one\ntwo\n"


def test_any_file_system_can_be_wrapped() -> None:
    memory = MemoryFileSystem()
    memory.pipe_file("/bucket/photo.jpg", CONTENT)
    fs = FlakyFileSystem(memory, every=2, times=1)
    assert tried(lambda: fs.cat_file("/bucket/photo.jpg"), 2) == ["ConnectionResetError", "right"]
    memory.rm("/bucket", recursive=True)


def test_arrow_reads_through_a_wrapped_file_system(tmp_path: Path) -> None:
    table = pa.table({"number": list(range(10000))})
    pq.write_table(table, tmp_path / "numbers.parquet")
    assert pq.read_table(str(tmp_path / "numbers.parquet"), filesystem=SlowFileSystem()) == table
    with pytest.raises(ConnectionResetError):
        pq.read_table(str(tmp_path / "numbers.parquet"), filesystem=FlakyFileSystem(every=2))


def test_a_slow_store_takes_its_time(file: str) -> None:
    began = time.monotonic()
    assert SlowFileSystem(latency=0.2).cat_file(file) == CONTENT
    opened = time.monotonic()
    assert SlowFileSystem(rate=len(CONTENT) / 0.3).cat_file(file) == CONTENT
    assert opened - began >= 0.2
    assert time.monotonic() - opened >= 0.3


def test_each_object_has_its_own_counter() -> None:
    assert FlakyFileSystem().attempts is not FlakyFileSystem().attempts
    assert fsspec.filesystem("file") is FlakyFileSystem().fs
