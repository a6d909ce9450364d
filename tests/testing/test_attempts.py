"""The counter is right whatever happens to those who count."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import UsageError
from headrace.testing import Attempts
from tests.testing.jobs import count, run


def test_attempts_are_numbered_from_0_for_each_key() -> None:
    with Attempts() as attempts:
        assert [attempts.count(key) for key in ("a", "b", "a", 3, "a", ("a", 3))] == [0, 0, 1, 0, 2, 0]
        assert [attempts.of(key) for key in ("a", "b", 3, "c")] == [3, 1, 1, 0]


def test_whole_numbers_of_all_types_are_one_key() -> None:
    with Attempts() as attempts:
        assert [attempts.count(key) for key in (7, np.int64(7), np.uint8(7))] == [0, 1, 2]
        assert attempts.of("7") == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_attempts_of_killed_processes_count(method: str) -> None:
    with Attempts() as attempts:
        assert run(count, attempts, "sample", 3, method=method) == -9
        assert run(count, attempts, "sample", 2) == -9
        assert attempts.count("sample") == 5


def numbers(attempts: Attempts, times: int) -> list[int]:
    return [attempts.count("key") for _ in range(times)]


def test_no_number_is_given_twice() -> None:
    with Attempts() as attempts, multiprocessing.get_context("fork").Pool(3) as pool:
        asked = [pool.apply_async(numbers, (attempts, 500)) for _ in range(3)]
        with ThreadPoolExecutor(3) as threads:
            given = [number for part in threads.map(numbers, [attempts] * 3, [500] * 3) for number in part]
        given += [number for part in asked for number in part.get()]
    assert sorted(given) == list(range(3000))


def folders(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def test_the_folder_goes_with_the_counter_and_not_with_a_copy_or_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    attempts = Attempts()
    copy = pickle.loads(pickle.dumps(attempts))
    copy.count("key")
    copy.close()
    del copy
    forked = os.fork()
    if forked == 0:
        attempts.close()
        os._exit(0)
    os.waitpid(forked, 0)
    assert (len(folders(tmp_path)), attempts.of("key")) == (1, 1)
    del attempts
    gc.collect()
    assert folders(tmp_path) == []


def test_counting_behind_the_end_says_who_must_keep_the_counter() -> None:
    attempts = Attempts()
    attempts.close()
    attempts.close()
    with pytest.raises(UsageError, match="keep the Attempts"):
        attempts.count("key")
    assert attempts.of("key") == 0
