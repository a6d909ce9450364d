"""How fast ready samples reach the training loop: torch's loader and headrace's, interleaved in one run.

Samples are ready 3x224x224 float32 tensors in memory, so an epoch measures collation and the way between processes and
nothing else. Every batch is checked: in an untimed first epoch byte for byte, in the timed ones at three points of each
sample and by its labels. Printed are the medians over the rounds and the median of the round-by-round ratios.

    python benchmarks/transport.py [--batches 60] [--rounds 7] [--only TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
import results

DISTINCT = 128
BATCH = 64
SHAPE = (3, 224, 224)
SLOTS = 3
"""Batches that a process of the ring has room for."""

POINTS = ((0, 0, 0), (1, 100, 17), (2, 223, 223))
CHECKED = "Every batch was checked: in a first epoch byte for byte, in the timed ones at three points of each sample."


class ReadySamples(Dataset[tuple[torch.Tensor, int]]):
    """`length` samples, which repeat `DISTINCT` tensors that are in memory already."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tensors = [torch.randn(SHAPE, generator=generator) for _ in range(DISTINCT)]
        self.points = torch.stack([torch.stack([t[p] for p in POINTS]) for t in self.tensors])
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.tensors[index % DISTINCT], index

    def check(self, number: int, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Raises unless a batch is the one that belongs at this place of the epoch."""
        first = number * BATCH
        if not torch.equal(labels, torch.arange(first, first + len(labels))):
            raise SystemExit(f"batch {number} has wrong labels")
        found = torch.stack([images[(slice(None), *point)] for point in POINTS], 1)
        if images.shape[1:] != SHAPE or not torch.equal(found, self.points[labels % DISTINCT]):
            raise SystemExit(f"batch {number} has wrong images")

    def check_fully(self, number: int, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Raises unless every byte of a batch is right."""
        self.check(number, images, labels)
        for image, label in zip(images, labels.tolist(), strict=True):
            if not torch.equal(image, self.tensors[label % DISTINCT]):
                raise SystemExit(f"sample {label} is wrong")


class Ring:
    """What the machine allows: processes that stack samples in shared slots, and a loop that takes them in turn.

    No loader, no message but a semaphore, processes that live on between epochs. It knows one order and no faults, and
    a batch is gone when the loop asks for the next one.
    """

    def __init__(self, dataset: ReadySamples, workers: int) -> None:
        self._dataset, self._workers = dataset, workers
        rows = mmap.mmap(-1, workers * SLOTS * BATCH * dataset.tensors[0].nbytes)
        self._images = torch.frombuffer(rows, dtype=torch.float32).view(workers, SLOTS, BATCH, *SHAPE)
        self._labels = torch.frombuffer(mmap.mmap(-1, workers * SLOTS * BATCH * 8), dtype=torch.int64)
        self._labels = self._labels.view(workers, SLOTS, BATCH)
        context = multiprocessing.get_context("fork")
        self._begin = [context.Semaphore(0) for _ in range(workers)]
        self._free = [context.Semaphore(SLOTS) for _ in range(workers)]
        self._ready = [context.Semaphore(0) for _ in range(workers)]
        for worker in range(workers):
            context.Process(target=self._fill, args=(worker,), daemon=True).start()

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for begin in self._begin:
            begin.release()
        for number in range(len(self._dataset) // BATCH):
            worker, slot = number % self._workers, number // self._workers % SLOTS
            self._ready[worker].acquire()
            yield self._images[worker, slot], self._labels[worker, slot]
            self._free[worker].release()

    def _fill(self, worker: int) -> None:
        torch.set_num_threads(1)
        while self._begin[worker].acquire():
            for turn, number in enumerate(range(worker, len(self._dataset) // BATCH, self._workers)):
                self._free[worker].acquire()
                slot = turn % SLOTS
                keys = range(number * BATCH, (number + 1) * BATCH)
                samples = [self._dataset[key] for key in keys]
                torch.stack([image for image, _ in samples], out=self._images[worker, slot])
                self._labels[worker, slot] = torch.tensor([label for _, label in samples])
                self._ready[worker].release()


class Copied:
    """Another loader's batches, each copied by the loop into memory of its own, as to an accelerator."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._images = torch.zeros(BATCH, *SHAPE)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for images, labels in self._loader:
            yield self._images.copy_(images), labels


@dataclass
class Epoch:
    """One timed epoch: gigabytes per second, and milliseconds to the first batch."""

    rate: float
    first: float


def epoch(loader: Any, dataset: ReadySamples, check: Callable[..., None]) -> Epoch:
    """Runs one epoch and checks every batch."""
    began = time.perf_counter()
    first, nbytes = None, 0
    for number, (images, labels) in enumerate(loader):
        if first is None:
            first = time.perf_counter() - began
        check(number, images, labels)
        nbytes += images.nbytes
    seconds = time.perf_counter() - began
    if nbytes != len(dataset) * dataset.tensors[0].nbytes:
        raise SystemExit("an epoch had the wrong size")
    return Epoch(nbytes / seconds / 1e9, (first or 0.0) * 1e3)


def compare(dataset: ReadySamples, rounds: int, options: dict[str, Any], *, copied: bool) -> dict[str, list[Epoch]]:
    """Returns the epochs of each loader, after a warm-up epoch of each that is checked fully."""
    loaders: dict[str, Any] = {
        "torch": TorchLoader(dataset, batch_size=BATCH, **options),
        "headrace": headrace.DataLoader(dataset, batch_size=BATCH, **options),
    }
    if options.get("num_workers"):
        loaders["bare ring"] = Ring(dataset, options["num_workers"])
    if copied:
        loaders = {name: Copied(loader) for name, loader in loaders.items()}
    for loader in loaders.values():
        epoch(loader, dataset, dataset.check_fully)

    timed: dict[str, list[Epoch]] = {name: [] for name in loaders}
    for turn in range(rounds):
        names = list(loaders)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            timed[name].append(epoch(loaders[name], dataset, dataset.check))
    return timed


def tables(measured: dict[str, dict[str, list[Epoch]]]) -> list[results.Table]:
    """Returns what was measured as two tables: rates, and times to the first batch."""

    def rows(field: str, *, ring: bool) -> list[results.Row]:
        return [
            results.Row(
                title,
                {
                    name: [getattr(epoch, field) for epoch in epochs]
                    for name, epochs in timed.items()
                    if ring or name != "bare ring"
                },
            )
            for title, timed in measured.items()
        ]

    return [
        results.Table("64x3x224x224 float32, to the training loop", "GB/s", rows("rate", ring=True), CHECKED),
        results.Table("the first batch of a warm epoch", "ms", rows("first", ring=False), CHECKED, better="less"),
    ]


def main() -> None:
    """Runs all settings and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches of 38.5 MB in an epoch")
    parser.add_argument("--rounds", type=int, default=7, help="timed epochs of each loader")
    parser.add_argument("--only", default="", help="settings whose names have this text")
    results.option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = ReadySamples(given.batches * BATCH)
    kept: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    settings: list[tuple[str, dict[str, Any], bool]] = [
        ("2 workers, kept between epochs", kept, False),
        ("2 workers, kept; the loop copies each batch", kept, True),
        ("2 workers, new in each epoch", {"num_workers": 2}, False),
        ("no workers, one thread", {}, False),
    ]
    measured = {
        title: compare(dataset, given.rounds, options, copied=copied)
        for title, options, copied in settings
        if given.only in title
    }
    for table in tables(measured):
        results.show(table)
    results.write(given.json, tables(measured))


if __name__ == "__main__":
    main()
