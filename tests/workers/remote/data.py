"""Datasets for workers on other machines."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import headrace


class Pair(NamedTuple):
    """A batch of a class of the test's own."""

    rows: torch.Tensor
    keys: torch.Tensor


class Rows(Dataset[Any]):
    """Samples of several kinds: a large tensor, random numbers, text, an array of NumPy's."""

    def __init__(self, length: int = 60, width: int = 8_000) -> None:
        self.length = length
        self.width = width
        self.table = torch.arange(length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {
            "row": torch.full((self.width,), float(self.table[key])),
            "drawn": random.random() + float(torch.rand(())),
            "text": f"row {key}",
            "array": np.arange(key, key + 3),
            "pair": Pair(torch.tensor([key]), torch.tensor(key)),
        }


class SlowRows(Rows):
    """The same, of which each takes a while."""

    def __init__(self, length: int = 200, seconds: float = 0.005) -> None:
        super().__init__(length, 500)
        self.seconds = seconds

    def __getitem__(self, key: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return super().__getitem__(key)


class Stream(IterableDataset[Any]):
    """A stream that splits itself over the workers."""

    def __init__(self, length: int = 60) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        assert info is not None
        for number in range(info.id, self.length, info.num_workers):
            yield torch.full((2_000,), number)


class PlainStream(IterableDataset[Any]):
    """A stream that does not split itself."""

    def __init__(self, length: int = 60) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((2_000,), number) for number in range(self.length))


class ThreadPooledRows(Rows):
    """The same, made by a thread that unpickling starts."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(abs, 1).result()

    def __getitem__(self, key: int) -> dict[str, Any]:
        return self.pool.submit(super().__getitem__, key).result(60)


class Faulty(Rows):
    """One sample does something bad to its worker, once or always: a marker file says whether it has been done."""

    def __init__(self, key: int, fault: str, marker: Path | None = None) -> None:
        super().__init__(40, 100)
        self.key = key
        self.fault = fault
        self.marker = marker

    def __getitem__(self, key: int) -> dict[str, Any]:
        if key == self.key and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            self._do()
        return super().__getitem__(key)

    def _do(self) -> None:
        if self.fault == "raise":
            raise ValueError(f"row {self.key} is damaged")
        if self.fault == "exit":
            os._exit(23)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(600)


def remote_loader(dataset: Any, **words: Any) -> headrace.DataLoader[Any]:
    """Returns a loader of batches of four, by two workers of Ray's."""
    return headrace.DataLoader(dataset, **{"batch_size": 4, "backend": headrace.Ray(), "num_workers": 2} | words)


def expected_of(dataset: Any, **words: Any) -> list[Any]:
    """Returns the same batches, made on this machine."""
    return [flat(batch) for batch in headrace.DataLoader(dataset, batch_size=4, **words)]


def flat(batch: Any) -> list[Any]:
    """Returns what a batch holds, as plain values that can be compared."""
    if isinstance(batch, torch.Tensor):
        return [batch.dtype, tuple(batch.shape), batch.tolist()]
    if isinstance(batch, dict):
        return [(key, flat(value)) for key, value in batch.items()]
    if isinstance(batch, (list, tuple)):
        return [type(batch).__name__, *(flat(value) for value in batch)]
    return [batch]
