"""Datasets for workers by spawn and forkserver, and what their tests look at."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from headrace.testing.belongings import parent_of
from headrace.workers.processes.fork_server import MAX_DESCRIPTORS
from tests.workers.datasets import Photos

METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])


class Notebook(Dataset[Any]):
    """Holds numbers in an attribute, a tensor and an array, and notes in a file how often it was unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.tensor = torch.arange(4000)
        self.array = np.arange(4000)
        self.calls = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with self.path.open("a") as file:
            file.write("unpickled\n")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> list[int]:
        self.calls += 1
        self.tensor[index + 100] += 1  # in this worker's copy
        self.array[index + 100] += 1
        return [self.offset, int(self.tensor[index]), int(self.array[index]), int(self.tensor[index + 100]), self.calls]

    @property
    def times_unpickled(self) -> int:
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0


class Sharing(Dataset[int]):
    """Speaks to the main process by everything that multiprocessing and torch can share."""

    def __init__(self, context: Any) -> None:
        self.seen = torch.zeros(8, dtype=torch.int64).share_memory_()
        self.lock = context.Lock()
        self.total = context.Value("q", 0, lock=False)
        self.gate = context.Event()
        self.questions = context.SimpleQueue()
        self.answers = context.Queue()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.gate.wait()
        question = self.questions.get()
        self.seen[index] += 1
        with self.lock:
            self.total.value += question
        self.answers.put((index, question))
        return index


class ManyShared(Dataset[torch.Tensor]):
    """Holds more shared tensors than descriptors can be passed at once."""

    def __init__(self) -> None:
        self.tensors = [torch.full((2,), number).share_memory_() for number in range(MAX_DESCRIPTORS + 10)]

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensors[index]


class Breaking(Photos):
    """Cannot be unpickled while `error` is set."""

    error: BaseException | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.error is not None:
            raise self.error


class Identity(Dataset[Any]):
    """Each sample tells which worker made it."""

    greeting = "nobody came"

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        drawn = (torch.initial_seed(), int(torch.randint(1 << 40, ())), int(np.random.randint(1 << 30)))
        return index, info.id, info.num_workers, info.seed, info.dataset is self, self.greeting, *drawn, os.getppid()


class Shard(IterableDataset[int]):
    """Yields this worker's share of 21 numbers."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, 21, info.num_workers)


def greet(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.greeting = f"worker {worker_id} of {info.num_workers}"


def leave(worker_id: int) -> None:
    if worker_id == 1:
        sys.exit(7)


def as_lists(samples: list[Any]) -> list[Any]:
    return samples


def sums(samples: list[Any]) -> torch.Tensor:
    images, _ = default_collate(samples)
    return images.sum(dim=(1, 2, 3))


def descendants(pid: int) -> set[int]:
    """Returns the processes below one, as /proc shows them."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found |= frontier
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ends(pid: int) -> bool:
    """Waits until a process has ended; the kernel tells through a pidfd."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with contextlib.closing(os.fdopen(pidfd)):
        return bool(select.select([pidfd], [], [], 30)[0])


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)


def fork_server_of(iterator: Any) -> int:
    """Returns the process that forked the workers."""
    (pid,) = {parent_of(process.pid) for process in iterator._workers}
    return pid


def flat(batches: list[Any]) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]
