"""The end of a worker is noticed, and its memory comes back, whoever else waits for processes or holds their pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace import DataLoader
from tests.belongings import Children
from tests.workers.datasets import Photos

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs pidfds"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.fixture(params=["ignored", "reaped"])
def foreign_reaping(request: pytest.FixtureRequest) -> Iterator[None]:
    """The program ignores SIGCHLD, or waits for any child as soon as it ends."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN if request.param == "ignored" else reap)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.thorough
@METHODS
@pytest.mark.usefixtures("foreign_reaping")
def test_memory_and_descriptors_stay_flat_where_exit_codes_are_lost(children: Children, method: str) -> None:
    # The sampler is the user's: behind a late batch, workers would make more ahead.
    loader = DataLoader(
        Photos(64), batch_size=8, num_workers=2, multiprocessing_context=method, sampler=list(range(64))
    )
    figures = []
    for _ in range(5):
        assert torch.cat([labels for _, labels in loader]).tolist() == list(range(64))
        assert loader._session.resources.arena is not None
        figures.append((loader._session.resources.arena._in_file, len(list(Path("/proc/self/fd").iterdir()))))
    assert figures[1:] == [figures[1]] * 4
    assert children() == []


@METHODS
@pytest.mark.usefixtures("foreign_reaping")
def test_a_worker_that_is_killed_is_replaced_where_exit_codes_are_lost(method: str) -> None:
    loader = DataLoader(Photos(64), batch_size=4, num_workers=2, multiprocessing_context=method)
    iterator = iter(loader)
    labels = [next(iterator)[1]]
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    labels += [label for _, label in iterator]
    assert torch.cat(labels).tolist() == list(range(64))


class Forking(Photos):
    """Each worker forks a child that outlives it, and writes down its number."""

    def __init__(self, folder: Path) -> None:
        super().__init__(64)
        self.folder = folder

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        mine = self.folder / str(os.getpid())
        if not mine.exists():
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            mine.write_text(str(child))
        return super().__getitem__(index)

    def children(self) -> list[int]:
        return [int(file.read_text()) for file in self.folder.iterdir()]


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[Forking]:
    dataset = Forking(tmp_path)
    yield dataset
    for child in dataset.children():
        os.kill(child, signal.SIGKILL)


@METHODS
def test_the_death_of_a_worker_is_noticed_while_a_child_of_it_lives(method: str, forking: Forking) -> None:
    iterator = iter(DataLoader(forking, batch_size=4, num_workers=2, multiprocessing_context=method))
    labels = [next(iterator)[1]]
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    labels += [label for _, label in iterator]
    assert torch.cat(labels).tolist() == list(range(64))
    assert len(forking.children()) == 3


@METHODS
def test_an_epoch_ends_while_children_of_its_workers_live(children: Children, method: str, forking: Forking) -> None:
    loader = DataLoader(forking, batch_size=4, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        assert len(list(loader)) == 16
    assert len(forking.children()) == 4
    assert children() == []


class Neighbour:
    """A child that another thread forks in the middle of the next fork of this process, so that it inherits all pipes
    of the worker that is being started."""

    def __init__(self) -> None:
        self.pid = 0
        self.wanted = False
        os.register_at_fork(before=self._before)

    def _before(self) -> None:
        if not self.wanted:
            return
        self.wanted = False
        thread = threading.Thread(target=self._fork)
        thread.start()
        thread.join()

    def _fork(self) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            signal.pause()
            os._exit(0)


def test_the_death_of_a_worker_is_noticed_while_a_process_lives_that_was_forked_in_the_same_moment() -> None:
    loader = DataLoader(Photos(64), batch_size=4, num_workers=1, multiprocessing_context="fork")
    neighbour = Neighbour()
    neighbour.wanted = True
    iterator = iter(loader)
    try:
        assert neighbour.pid
        labels = [next(iterator)[1]]
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        labels += [label for _, label in iterator]
    finally:
        os.kill(neighbour.pid, signal.SIGKILL)
        os.waitpid(neighbour.pid, 0)
    assert torch.cat(labels).tolist() == list(range(64))


def epochs_with_a_kill(count: int, delivered: list[Any]) -> None:
    loader = DataLoader(Photos(64, side=16), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(count):
        iterator = iter(loader)
        labels = [next(iterator)[1]]
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        labels += [label for _, label in iterator]
        delivered.append(torch.cat(labels).tolist())


@pytest.mark.thorough
@pytest.mark.parametrize("count", [3, pytest.param(40, marks=[pytest.mark.stress, pytest.mark.timeout(600)])])
def test_threads_with_a_loader_each_go_on_when_workers_are_killed(count: int) -> None:
    """One thread may fork in the middle of another's start of a worker, and its worker then inherits what is open."""
    delivered: list[Any] = []
    threads = [threading.Thread(target=epochs_with_a_kill, args=(count, delivered)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert delivered == [list(range(64))] * 4 * count
