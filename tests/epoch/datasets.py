"""Datasets whose samples show which random numbers were drawn, at module level for every start method."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

import headrace


class Drawing(Dataset[torch.Tensor]):
    """Sample i is i and a number from `headrace.rng()`."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(headrace.rng().integers(1 << 40))])


class Rows(Drawing):
    """Sample i is i."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class DrawingEverywhere(Drawing):
    """Draws from the three global generators too."""

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.randrange(1 << 40), int(np.random.randint(1 << 30)), int(torch.randint(1 << 40, ()))]
        return torch.cat([super().__getitem__(index), torch.tensor(drawn)])


class Epochs(Drawing):
    """Samples tell the epoch that the dataset was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.epoch])


class Stream(IterableDataset[torch.Tensor]):
    """Numbers 0 .. length-1, each with a random number."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.length):
            yield torch.tensor([number, int(headrace.rng().integers(1 << 40))])


class StatefulStream(Stream):
    """The same, able to say where it is. Counts the samples that it makes after a restart."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.next = 0
        self.made = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.next < self.length:
            number, self.next = self.next, self.next + 1
            self.made += 1
            yield torch.tensor([number, int(headrace.rng().integers(1 << 40))])
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.next = state_dict["next"]


class StatefulIterator:
    """An iterator with a state of its own, for a dataset that has none."""

    def __init__(self, first: int, step: int, stop: int) -> None:
        self.next, self.step, self.stop = first, step, stop

    def __iter__(self) -> StatefulIterator:
        return self

    def __next__(self) -> int:
        if self.next >= self.stop:
            raise StopIteration
        number, self.next = self.next, self.next + self.step
        return number

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.next = state_dict["next"]


class SelfSplitting(IterableDataset[int]):
    """Each worker has its own numbers, as in torch's documentation; lengths differ."""

    def __init__(self, length: int, stateful: bool) -> None:
        self.length = length
        self.stateful = stateful

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        iterator = StatefulIterator(worker, workers, self.length - 5 * worker)
        return iterator if self.stateful else iter(list(iterator))


class Files(IterableDataset[tuple[int, int]]):
    """Numbered files of different lengths, dealt out whole by `headrace.shard`."""

    def __init__(self, files: int) -> None:
        self.files = files

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for file in headrace.shard(list(range(self.files))):
            for line in range(3 + file % 4):
                yield file, line


class Counting(Dataset[int]):
    """A map-style dataset with a state: how often this copy was asked."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.tensor([index, self.asked])

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.asked = state_dict["asked"]
