"""How fast ready samples reach the training loop: torch's loader and headrace's, interleaved in one run.

Samples are ready 3x224x224 float32 tensors in memory, so an epoch measures collation and the way between processes and
nothing else. Every batch is checked: in an untimed first epoch byte for byte, in the timed ones at three points of each
sample and by its labels. Printed are the medians over the rounds and the median of the round-by-round ratios.

    python benchmarks/transport.py [--batches 60] [--rounds 7] [--markdown] [--json FILE]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
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


def compare(dataset: ReadySamples, rounds: int, options: dict[str, Any]) -> list[tuple[Epoch, Epoch]]:
    """Returns one (torch, headrace) pair for each round, after a warm-up epoch of each that is checked fully."""
    loaders = [cls(dataset, batch_size=BATCH, **options) for cls in (TorchLoader, headrace.DataLoader)]
    for loader in loaders:
        epoch(loader, dataset, dataset.check_fully)
    pairs = []
    for turn in range(rounds):
        order = loaders if turn % 2 == 0 else loaders[::-1]
        timed = [epoch(loader, dataset, dataset.check) for loader in order]
        pairs.append((timed[0], timed[1]) if turn % 2 == 0 else (timed[1], timed[0]))
    return pairs


def row(title: str, pairs: list[tuple[Epoch, Epoch]]) -> list[str]:
    """Returns the cells of one line of the table."""

    def median(values: list[float]) -> float:
        return statistics.median(values)

    rates = [median([pair[side].rate for pair in pairs]) for side in (0, 1)]
    firsts = [median([pair[side].first for pair in pairs]) for side in (0, 1)]
    rate_ratio = median([ours.rate / theirs.rate for theirs, ours in pairs])
    first_ratio = median([ours.first / theirs.first for theirs, ours in pairs])
    return [
        title,
        *(f"{rate:.2f}" for rate in rates),
        f"{rate_ratio:.2f}x",
        *(f"{first:.1f}" for first in firsts),
        f"{first_ratio:.2f}x",
    ]


def tables(measured: dict[str, list[tuple[Epoch, Epoch]]]) -> list[results.Table]:
    """Returns what was measured as two tables: rates, and times to the first batch."""

    def rows(field: str) -> list[results.Row]:
        sides = ("torch", "headrace")
        return [
            results.Row(
                title, {name: [getattr(pair[side], field) for pair in pairs] for side, name in enumerate(sides)}
            )
            for title, pairs in measured.items()
        ]

    return [
        results.Table("64x3x224x224 float32, to the training loop", "GB/s", rows("rate"), CHECKED),
        results.Table("the first batch of a warm epoch", "ms", rows("first"), CHECKED, better="less"),
    ]


def main() -> None:
    """Runs all settings and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches of 38.5 MB in an epoch")
    parser.add_argument("--rounds", type=int, default=7, help="timed epochs of each loader")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    results.option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = ReadySamples(given.batches * BATCH)
    settings: list[tuple[str, dict[str, Any]]] = [
        ("2 workers, kept between epochs", {"num_workers": 2, "persistent_workers": True}),
        ("2 workers, new in each epoch", {"num_workers": 2}),
        ("no workers, one thread", {}),
    ]
    head = [
        "64x3x224x224 float32",
        "torch GB/s",
        "headrace GB/s",
        "ratio",
        "torch first ms",
        "headrace first ms",
        "ratio",
    ]
    measured = {title: compare(dataset, given.rounds, options) for title, options in settings}
    rows = [head] + [row(title, pairs) for title, pairs in measured.items()]
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}; {given.rounds} rounds, {given.batches} batches"
    )
    if given.markdown:
        rows.insert(1, ["---"] + ["---:"] * (len(head) - 1))
        print("\n".join("| " + " | ".join(cells) + " |" for cells in rows))
    else:
        widths = [max(len(cells[column]) for cells in rows) for column in range(len(head))]
        for cells in rows:
            print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    print("every batch of every epoch was checked")
    results.write(given.json, tables(measured))


if __name__ == "__main__":
    main()
