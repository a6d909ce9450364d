"""What crashes: datasets, collate functions and loops in which a fault happens at one place.

All at module level, so that every start method can send them. Eight samples make four batches; the fault is at the
second sample of the third batch, or at the start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from headrace.testing import Attempts, Fault, Faulty, FaultyCall, FaultyPickle, Hang

LENGTH = 8
BATCH = 2
KEY = 5
"""The sample at which things go wrong."""


class Numbers(Dataset[torch.Tensor]):
    """Sample i is the number i."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor(float(key))


class Together(Numbers):
    """Samples of a batch are read at once."""

    def __getitems__(self, keys: list[int]) -> list[torch.Tensor]:
        return [self[key] for key in keys]


class FrailAtBirth(Numbers):
    """The fault happens in the constructor."""

    def __init__(self, fault: FaultyCall) -> None:
        fault()


class FrailOnArrival(Numbers):
    """The fault happens where the dataset is unpickled."""

    def __init__(self, fault: FaultyCall) -> None:
        self.fault = fault

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self.fault()


class FrailStream(IterableDataset[torch.Tensor]):
    """The fault happens in `__iter__`. Each worker has a part of the samples."""

    def __init__(self, fault: FaultyCall) -> None:
        self.fault = fault

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.fault()
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        part = LENGTH // workers
        return iter([torch.tensor(float(key)) for key in range(number * part, (number + 1) * part)])


@dataclass(frozen=True)
class AtTheGate:
    """A fault that happens when the user's process opens a gate, and not before the fault is under way there."""

    folder: Path
    fault: Fault

    def __call__(self) -> None:
        """Waits for the gate."""
        (self.folder / "reached").touch()
        wait_for(self.folder / "open")
        self.fault()

    def open(self) -> None:
        """Opens the gate once somebody stands before it."""
        wait_for(self.folder / "reached")
        (self.folder / "open").touch()


def wait_for(path: Path) -> None:
    """Waits until a file is made, by another process: nothing would tell."""
    while not path.exists():
        time.sleep(0.005)


@dataclass(frozen=True)
class SayAndHang:
    """Hangs for ever, and says before that it does, into a descriptor of this process."""

    descriptor: int

    def __call__(self) -> None:
        """Hangs."""
        os.write(self.descriptor, b"hangs\n")
        Hang()()


def holds_the_key(samples: list[torch.Tensor]) -> bool:
    return any(int(sample) == KEY for sample in samples)


def collates_with(fault: Fault, times: int | None, attempts: Attempts) -> FaultyCall:
    """Returns a collate function in which the fault happens for the batch with the key."""
    return FaultyCall(default_collate, fault, when=holds_the_key, times=times, attempts=attempts)


@dataclass(frozen=True)
class Travels:
    """A collate function whose batch with the key meets the fault on its way to the main process."""

    when: Any
    fault: Fault

    def __call__(self, samples: list[torch.Tensor]) -> Any:
        """Returns the batch, or what cannot travel."""
        batch = default_collate(samples)
        return FaultyPickle(batch, self.when, self.fault) if holds_the_key(samples) else batch


def numbers_of(batch: Any) -> list[int]:
    """Returns the samples that a batch consists of."""
    return [int(number) for number in getattr(batch, "value", batch)]


def faulty(dataset: Any, fault: Fault, times: int | None, attempts: Attempts) -> Faulty:
    """Returns a dataset in which the fault happens at the key, read alone or with others."""
    return Faulty(dataset, {KEY: fault}, attempts=attempts, times=times)


@dataclass(frozen=True)
class Init:
    """A `worker_init_fn`."""

    fault: FaultyCall

    def __call__(self, worker: int) -> None:
        """Lets the fault happen in every worker."""
        self.fault()
