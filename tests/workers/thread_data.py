"""Datasets for worker threads, and what their tests look at."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

import headrace
from headrace import DataLoader


class Gate(Dataset[int]):
    """Sample `blocked` waits until `opened` is set; `reached` tells that it does."""

    def __init__(self, blocked: int, length: int = 12) -> None:
        self.blocked = blocked
        self.length = length
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.blocked:
            self.reached.set()
            assert self.opened.wait(60)
        return index


class Raising(Dataset[int]):
    """Raises `error`, which need not be an Exception, for one key."""

    def __init__(self, key: int, error: BaseException) -> None:
        self.key = key
        self.error = error

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == self.key:
            raise self.error
        return index


class Places(Dataset[Any]):
    """Each sample tells where it was made."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        thread = threading.current_thread().name
        return index, (info.id, info.num_workers, info.seed, info.dataset is self) if info else None, thread


class Counter(Dataset[int]):
    """Counts its own calls, in an attribute."""

    calls = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.calls += 1
        return self.calls


class Drawing(Dataset[Any]):
    """Draws two random numbers for each sample, from the named source."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return index, draw(self.source), draw(self.source)


class DrawingStream(IterableDataset[Any]):
    """Draws a random number for each number of this worker's share, from the named source."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(first, 21, step):
            yield number, draw(self.source)


class DrawingLate(Dataset[Any]):
    """Draws a random number for each sample from number `first` on, from the named source."""

    def __init__(self, source: str, first: int) -> None:
        self.source = source
        self.first = first

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return index, draw(self.source) if index >= self.first else 0.0


class DrawingLateStream(IterableDataset[Any]):
    """The same as a stream, split among the workers."""

    def __init__(self, source: str, first: int) -> None:
        self.dataset = DrawingLate(source, first)

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        for number in range(info.id, len(self.dataset), info.num_workers):
            yield self.dataset[number]


class DrawingStart(IterableDataset[int]):
    """Draws once, when an iterator is made."""

    def __iter__(self) -> Any:
        start = random.randrange(5)
        return iter(range(start, start + 20))


class DrawingFromOwn(Dataset[Any]):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return index, self.generator.random()


class Turns(Dataset[int]):
    """From the third on, a sample waits until the loop has got the one two before it."""

    def __init__(self, length: int) -> None:
        self.got = [threading.Event() for _ in range(length)]

    def __len__(self) -> int:
        return len(self.got)

    def __getitem__(self, index: int) -> int:
        if index >= 2:
            assert self.got[index - 2].wait(60)
        return index

    def let_go(self, index: int) -> None:
        """Lets the sample go on that waits for this one."""
        self.got[index].set()


class Shard(IterableDataset[int]):
    """Yields this worker's share of 21 numbers; asks for its worker late, when the first one is wanted."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        yield from range(first, 21, step)


def draw(source: str) -> float:
    draws = {
        "random": random.random,
        "numpy": np.random.rand,
        "torch": lambda: torch.rand((), dtype=torch.float64).item(),
        "headrace": lambda: headrace.rng().random(),
    }
    return float(draws[source]())


def collate_drawing(samples: list[Any]) -> Any:
    return default_collate(samples), random.random()


def as_lists(samples: list[Any]) -> list[Any]:
    return samples


def leave(worker_id: int) -> None:
    if worker_id == 1:
        sys.exit(7)


def threads(dataset: Any, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"num_workers": 2, "backend": "thread", **arguments})


def equal(one: Any, other: Any) -> bool:
    """Returns whether two batches have the same structure, types and bytes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def global_draws() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
