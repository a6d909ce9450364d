"""Samples that are ready in memory, so that an epoch shows collation and the way between processes alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.harness.turns import fail

DISTINCT = 128
BATCH = 64
SHAPE = (3, 224, 224)
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
            fail(f"batch {number} has wrong labels")
        found = torch.stack([images[(slice(None), *point)] for point in POINTS], 1)
        if images.shape[1:] != SHAPE or not torch.equal(found, self.points[labels % DISTINCT]):
            fail(f"batch {number} has wrong images")

    def check_fully(self, number: int, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Raises unless every byte of a batch is right."""
        self.check(number, images, labels)
        for image, label in zip(images, labels.tolist(), strict=True):
            if not torch.equal(image, self.tensors[label % DISTINCT]):
                fail(f"sample {label} is wrong")


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
        fail("an epoch had the wrong size")
    return Epoch(nbytes / seconds / 1e9, (first or 0.0) * 1e3)
