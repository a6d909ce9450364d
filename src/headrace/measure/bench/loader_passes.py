"""Runs torch's and headrace's loader over one stored form, for a while or for one epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset, default_collate

from headrace.data.formats.columns.schema import Schema
from headrace.data.gather import Padded
from headrace.data.stored import StoredDataset
from headrace.faults.policy import OnError
from headrace.loader.dataloader import DataLoader
from headrace.measure.bench.checksum import checksum_of
from headrace.telemetry.formatting import some

Order = Literal["sequential", "random"]

ORDERS: tuple[Order, ...] = ("random", "sequential")


@dataclass(frozen=True)
class LoaderChoice:
    """A loader and its number of worker processes."""

    loader: Literal["torch", "headrace"]
    workers: int

    def __str__(self) -> str:
        return f"{self.loader}, {some(self.workers, 'worker')}"


def loader_choices(workers: Sequence[int]) -> list[LoaderChoice]:
    """Returns what is measured: torch's loader without workers, and headrace's for each number of workers."""
    choices = [LoaderChoice("torch", 0)]
    for count in dict.fromkeys(workers):
        choices.append(LoaderChoice("headrace", count))

    return choices


class OwnCollate:
    """What a user of torch's loader writes where default collation fails; the rest is left to torch.

    Samples of different lengths are padded. Single numbers of type uint64 torch cannot make a tensor of.
    """

    def __init__(self, schema: Schema) -> None:
        self._ragged = {field.name for field in schema if field.kind == "ragged"}
        self._numbers = {field.name for field in schema if field.dtype == np.uint64 and not field.shape}

    @property
    def is_needed(self) -> bool:
        """Whether there are such columns."""
        return bool(self._ragged or self._numbers)

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns a batch."""
        batch: dict[str, Any] = {}
        for name in samples[0]:
            values = list(map(itemgetter(name), samples))
            if name in self._ragged:
                tensors = list(map(torch.from_numpy, values))
                lengths = torch.tensor(list(map(len, values)))
                batch[name] = Padded(pad_sequence(tensors, batch_first=True), lengths)
            elif name in self._numbers:
                batch[name] = torch.from_numpy(np.stack(values))
            else:
                batch[name] = default_collate(values)

        return batch


def make_loader(
    choice: LoaderChoice, data: StoredDataset, count: int, batch_size: int, order: Order
) -> TorchDataLoader[Any]:
    """Returns a loader of the first `count` samples. Random orders are the same for every form."""
    if count == len(data):
        given: Any = data
    else:
        given = Subset(data, range(count))

    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": order == "random", "num_workers": choice.workers}
    options["generator"] = torch.Generator().manual_seed(0)
    options["persistent_workers"] = choice.workers > 0
    if choice.loader == "headrace":
        return DataLoader(given, on_error=OnError(original=True), **options)

    collate = OwnCollate(data.schema)
    if collate.is_needed:
        collate_fn = collate
    else:
        collate_fn = None

    return TorchDataLoader(given, collate_fn=collate_fn, **options)


def epoch_checksum(choice: LoaderChoice, data: StoredDataset, count: int, batch_size: int) -> int:
    """Returns the checksum of one sequential epoch."""
    return checksum_of(make_loader(choice, data, count, batch_size, "sequential"))


def samples_per_second(loader: TorchDataLoader[Any], count: int, seconds: float) -> float:
    """Iterates epoch after epoch for about `seconds`, and one batch at least; returns the speed.

    The clock starts when the workers have started and what they made ahead meanwhile is used up.
    """
    size = loader.batch_size or 1
    skipped = max(1, 2 * loader.num_workers)
    first = began = 0.0
    seen = 0
    while True:
        for number, _ in enumerate(loader):
            now = time.perf_counter()
            if began:
                seen += min(size, count - number * size)
                if now - began >= seconds:
                    return seen / (now - began)
                continue

            skipped -= 1
            first = first or now
            if skipped <= 0 or now - first >= seconds:
                began = now
