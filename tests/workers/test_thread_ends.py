"""backend="thread": errors, exits and ends."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import DataLoader, OnError
from tests import programs
from tests.workers.datasets import Failing, FailingStream, Photos
from tests.workers.thread_data import (
    Gate,
    Raising,
    equal,
    leave,
    threads,
)

ROOT = Path(__file__).parents[2]

BLOCKED_AT_EXIT = """
import threading, torch
from torch.utils.data import Dataset
from headrace import DataLoader

blocked = threading.Event()

class Blocking(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 1:
            blocked.set()
            threading.Event().wait()
        return torch.tensor(index)

iterator = iter(DataLoader(Blocking(), batch_size=1, num_workers=2, backend="thread"))
print(next(iterator).item(), blocked.wait(), flush=True)
"""

BUSY_AT_EXIT = """
from headrace import DataLoader
from tests.workers.datasets import Photos
iterator = iter(DataLoader(Photos(4000), batch_size=8, num_workers=2, backend="thread"))
print(next(iterator)[1].tolist(), flush=True)
"""


@pytest.fixture
def worker_threads() -> Callable[[], list[str]]:
    """The function returns the names of the worker threads that came since the test began."""
    gc.collect()  # a caught exception keeps the iterator that raised it
    before = set(threading.enumerate())

    def names() -> list[str]:
        fresh = (thread for thread in threading.enumerate() if thread not in before)
        return [thread.name for thread in fresh if "set_num_threads" not in thread.name]  # which ends by itself

    return names


# -- what fails ------------------------------------------------------------------------------------------------------


def test_an_error_names_type_worker_key_and_traceback() -> None:
    with pytest.raises(ValueError, match="bad pixel") as caught:
        list(threads(Failing(2, ValueError("bad pixel")), batch_size=4))
    text = str(caught.value)
    assert text.startswith("Caught ValueError in DataLoader worker thread 0.\nOriginal Traceback")
    assert "in __getitem__\n    raise self.error" in text
    assert "headrace: raised while loading the sample with key 2" in text


def test_after_an_error_the_following_batches_come_as_without_workers() -> None:
    seen = []
    for workers in (0, 2):
        iterator = iter(threads(Failing(5, ValueError("bad pixel")), batch_size=4, num_workers=workers))
        values: list[Any] = []
        for _ in range(5):
            try:
                values.append(next(iterator).tolist())
            except ValueError:
                values.append("bad pixel")
        seen.append(values)
    assert seen[1] == seen[0]
    assert seen[1][1:3] == ["bad pixel", [8, 9, 10, 11]]


def test_an_original_error_is_the_very_exception() -> None:
    error = ValueError("bad pixel")
    with pytest.raises(ValueError) as caught:
        list(threads(Failing(5, error), batch_size=4, on_error=OnError(original=True)))
    assert caught.value is error
    assert any("worker thread 1" in note for note in error.__notes__)


def test_an_error_in_a_stream_names_the_worker() -> None:
    with pytest.raises(ValueError, match=r"worker thread 0(.|\n)*the stream broke"):
        list(threads(FailingStream(), batch_size=2, num_workers=1))


@pytest.mark.parametrize("key", [2, 5])
@pytest.mark.parametrize("seed", [None, 3])
def test_an_exit_in_a_data_set_is_an_error_that_names_the_worker_and_the_code(key: int, seed: int | None) -> None:
    loader = threads(Raising(key, SystemExit(7)), batch_size=4, seed=seed)
    with pytest.raises(RuntimeError, match=r"worker thread [01] was to exit with code 7"):
        list(loader)
    with pytest.raises(RuntimeError, match=r"worker thread [01] was to exit with code 7"):
        list(loader)


@pytest.mark.parametrize("seed", [None, 3])
def test_an_exit_in_worker_init_fn_is_an_error(seed: int | None) -> None:
    with pytest.raises(RuntimeError, match="DataLoader worker thread"):
        list(threads(Photos(16, side=9), batch_size=4, worker_init_fn=leave, seed=seed))


@pytest.mark.parametrize("persistent", [False, True])
def test_an_interrupt_raised_in_a_worker_is_an_error_and_the_next_epoch_comes(persistent: bool) -> None:
    dataset = Raising(5, KeyboardInterrupt())
    loader = threads(dataset, batch_size=4, persistent_workers=persistent, timeout=10)
    with pytest.raises(RuntimeError, match="worker thread ended unexpectedly") as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    del caught
    dataset.key = -1
    assert torch.cat(list(loader)).tolist() == list(range(20))


def test_after_an_interrupt_raised_in_a_worker_its_iterator_does_not_wait_for_ever() -> None:
    iterator = iter(threads(Raising(5, KeyboardInterrupt()), batch_size=4, timeout=10))
    with pytest.raises(RuntimeError, match="worker thread ended unexpectedly"):
        list(iterator)
    with pytest.raises(RuntimeError, match=r"has been shut down|worker thread ended unexpectedly"):
        list(iterator)


def test_the_timeout_is_an_error_and_what_was_late_comes_afterwards() -> None:
    dataset = Gate(2)
    iterator = iter(threads(dataset, batch_size=2, timeout=0.2))
    assert next(iterator).tolist() == [0, 1]
    assert dataset.reached.wait(60)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iterator)
    dataset.opened.set()
    iterator.executor._timeout = 60
    assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


# -- what is left ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_that_is_broken_off_ends_its_threads(
    persistent: bool, worker_threads: Callable[[], list[str]]
) -> None:
    loader = threads(Photos(64, side=9), batch_size=4, persistent_workers=persistent)
    for _ in loader:
        assert worker_threads() == ["pt_data_worker_0", "pt_data_worker_1"]
        break
    assert worker_threads() == (["pt_data_worker_0", "pt_data_worker_1"] if persistent else [])
    del loader
    assert worker_threads() == []


def test_persistent_workers_are_the_same_threads_in_every_epoch() -> None:
    loader = threads(Photos(16, side=9), batch_size=4, persistent_workers=True)
    expected = list(DataLoader(Photos(16, side=9), batch_size=4))
    crews = []
    for _ in range(3):
        iterator = iter(loader)
        crews.append(list(iterator._workers))
        assert equal(list(iterator), expected)
    assert crews == [crews[0]] * 3
    assert all(thread.is_alive() for thread in crews[0])


def test_an_epoch_follows_one_that_persistent_workers_did_not_finish() -> None:
    loader = threads(Photos(32, side=9), batch_size=4, persistent_workers=True)
    expected = list(DataLoader(Photos(32, side=9), batch_size=4))
    for taken in (1, 2, 5):
        iterator = iter(loader)
        assert equal([next(iterator) for _ in range(taken)], expected[:taken])
    assert equal(list(loader), expected)


def test_a_finished_epoch_ends_its_threads(worker_threads: Callable[[], list[str]]) -> None:
    loader = threads(Photos(16, side=9), batch_size=4)
    iterator = iter(loader)
    assert len(list(iterator)) == 4
    assert worker_threads() == []


@pytest.mark.quick(code=BUSY_AT_EXIT)
@pytest.mark.parametrize("code", [BLOCKED_AT_EXIT, BUSY_AT_EXIT], ids=["blocked", "busy"])
def test_the_interpreter_ends_in_the_middle_of_an_epoch(code: str) -> None:
    run = programs.run(["-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    expected = "0 True\n" if code is BLOCKED_AT_EXIT else "[0, 1, 2, 3, 4, 5, 6, 7]\n"
    assert (run.stdout, run.stderr, run.returncode) == (expected, "", 0)
