"""Locks between processes: one holds, others wait or are told, and an end without a goodbye lets go."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.files.file_lock import locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no flock on Windows")

HOLD = """
import sys
from pathlib import Path
from headrace.core.files.file_lock import locked

with locked(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock, until it is told to let go or is killed."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def refuse() -> None:
    raise RuntimeError("taken")


def test_a_lock_is_made_with_its_folder_and_may_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "lock"
    for _ in range(2):
        with locked(path, refuse):
            assert path.is_file()


def test_whoever_comes_second_may_refuse_to_wait(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path), pytest.raises(RuntimeError, match="taken"), locked(path, refuse):
        raise AssertionError("both hold it")


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_waiting_process_gets_the_lock_when_its_holder_ends(tmp_path: Path, end: str) -> None:
    path = tmp_path / "lock"
    with holder(path) as other:
        assert other.stdin is not None
        with locked(path, other.stdin.close if end == "close" else other.kill):
            assert other.wait() == (0 if end == "close" else -9)


def test_a_lock_that_was_removed_while_waiting_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as first:

        def removed() -> None:
            path.unlink()
            first.kill()

        with locked(path, removed):
            assert path.is_file()
            with pytest.raises(RuntimeError, match="taken"), locked(path, refuse):
                raise AssertionError("both hold it")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_forked_while_a_lock_is_held_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    reading, writing = os.pipe()
    with locked(path, refuse):
        child = os.fork()
        if not child:
            os.close(writing)
            os.read(reading, 1)  # until the parent has seen what it wants to
            os._exit(0)
    try:
        with locked(path, refuse):
            assert path.is_file()
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(child, 0)
