"""Workers that a fork server forks in advance: they begin only if the dataset is what it was."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing
from torch.utils.data import Dataset

from headrace import DataLoader
from headrace.workers.processes.fork_server import ForkServer, fork_servers_exist
from headrace.workers.processes.fork_server_main import SPARE_LIFE
from tests.workers.fork_server_data import descendants, ends, kill_and_wait

pytestmark = pytest.mark.skipif(not fork_servers_exist(), reason="needs pidfds and descriptors over sockets")

LARGE = 1 << 16
"""From this many bytes on, pickle hands bytes over as the object that they are."""


class Held(Dataset[Any]):
    """Holds what a script may change: an array, a list of bytes, large and small, and an attribute."""

    def __init__(self) -> None:
        self.array = np.zeros(1 << 20, np.uint8)
        self.rows = [bytes([number]) * LARGE for number in range(4)]
        self.words = [b"a" * 10, b"b" * 10]
        self.shift = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:
        return int(self.array[-1]), self.rows[index][-1], self.words[1][0], self.shift


def array(dataset: Held) -> None:
    dataset.array[-1] = 7


def large_item(dataset: Held) -> None:
    dataset.rows[2] = b"\x02" * (LARGE - 1) + b"\x07"


def small_item(dataset: Held) -> None:
    dataset.words[1] = b"c" * 10


def attribute(dataset: Held) -> None:
    dataset.shift = 7


@pytest.mark.thorough
@pytest.mark.parametrize("change", [array, large_item, small_item, attribute])
def test_what_changed_in_place_between_epochs_reaches_the_workers(change: Callable[[Held], None]) -> None:
    dataset = Held()
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    before = [dataset[index] for index in range(4)]
    for _ in range(2):
        assert [tuple(sample) for sample in loader] == before  # the second time, by spares
    change(dataset)
    expected = [dataset[index] for index in range(4)]
    assert expected != before
    for _ in range(3):
        assert [tuple(sample) for sample in loader] == expected


# -- the fork server itself ------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer(torch.multiprocessing.get_context("spawn"))
    yield server
    server.close()


def say(worker_spec: list[int], pipe: Connection) -> None:
    """The target of a process: sends what it was given, and its pid."""
    pipe.send((worker_spec, os.getpid()))


class Torn:
    """An order that cannot be read."""

    def __reduce__(self) -> Any:
        return _torn, ()


def _torn() -> None:
    raise ValueError("a torn order")


def answer_of(server: ForkServer) -> list[int]:
    ours, theirs = Pipe()
    with ours, theirs:
        process = server.fork(say, theirs)
        told, pid = ours.recv()
        process.join()
    assert (process.exitcode, process.pid) == (0, pid)
    return list(told)


class Waiting:
    """Is pickled as a list. The first time, it waits until the fork server has so many children."""

    def __init__(self, server: ForkServer, children: int, value: list[int]) -> None:
        self.server = server
        self.children = children
        self.value = value
        self.found = -1

    def __reduce__(self) -> Any:
        deadline = time.monotonic() + 20
        while self.found != self.children and time.monotonic() < deadline:
            self.found = len(descendants(self.server.pid))
        return list, (self.value,)


def spares_of(server: ForkServer, value: list[int], children: int = 2) -> set[int]:
    """Has two processes work with [1], and then `value` loaded while so many spares are there; returns the spares."""
    server.load(Waiting(server, 0, [1]))
    for _ in range(2):
        assert answer_of(server) == [1]
    second = Waiting(server, children, value)
    server.load(second)
    assert second.found == children
    return descendants(server.pid)


@pytest.mark.thorough
def test_processes_are_forked_while_the_dataset_is_compared_and_get_the_orders(server: ForkServer) -> None:
    spares = spares_of(server, [1])
    assert len(spares) == 2
    for _ in range(2):
        ours, theirs = Pipe()
        with ours, theirs:
            process = server.fork(say, theirs)
            assert ours.recv() == ([1], process.pid)
            process.join()
        assert process.pid in spares
    assert answer_of(server) == [1]  # there is no further one


def test_processes_forked_in_advance_are_dropped_if_the_dataset_has_changed(server: ForkServer) -> None:
    dropped = spares_of(server, [2])  # those that have not ended by now
    assert answer_of(server) == [2]
    assert all(ends(pid) for pid in dropped)


@pytest.mark.thorough
def test_none_is_forked_in_advance_after_a_change_until_nothing_changes(server: ForkServer) -> None:
    spares_of(server, [2])
    for children in (0, 2):
        for _ in range(2):
            assert answer_of(server) == [2]
        unchanged = Waiting(server, children, [2])
        server.load(unchanged)
        assert unchanged.found == children


@pytest.mark.thorough
def test_a_spare_that_was_killed_is_not_missed(server: ForkServer) -> None:
    for pid in spares_of(server, [1]):
        kill_and_wait(pid)
    for _ in range(3):
        assert answer_of(server) == [1]


@pytest.mark.thorough
def test_spares_that_nobody_asks_for_end_by_themselves(server: ForkServer) -> None:
    began = time.monotonic()
    assert all(ends(pid) for pid in spares_of(server, [1]))
    assert time.monotonic() - began >= SPARE_LIFE
    assert answer_of(server) == [1]


@pytest.mark.thorough
def test_an_order_that_a_spare_cannot_read_is_an_error_with_its_traceback(server: ForkServer) -> None:
    spares = spares_of(server, [1])
    with pytest.raises(RuntimeError, match=r"cannot be started(.|\n)*ValueError: a torn order"):
        server.fork(say, Torn())
    assert answer_of(server) == [1]
    assert all(ends(pid) for pid in spares)


@pytest.mark.thorough
def test_spares_end_with_their_fork_server() -> None:
    server = ForkServer(torch.multiprocessing.get_context("spawn"))
    spares = spares_of(server, [1])
    assert len(spares) == 2
    kill_and_wait(server.pid)
    assert all(ends(pid) for pid in spares)
    server.close()
