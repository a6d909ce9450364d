"""What `seed=` costs where a dataset draws nothing, and where it draws: rates beside torch's, interleaved in one run.

python benchmarks/seeding.py [--rounds 11] [--batches 2000]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace

BATCH = 64


class Scalars(Dataset[int]):
    """Sample i is i: nothing but the loader's own work."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Drawing(Scalars):
    """The same, with a random number that is thrown away."""

    def __getitem__(self, index: int) -> int:
        random.random()
        return index


def rate(loader: Any, expected: int) -> float:
    """Returns samples per second of one epoch, whose samples must add up to `expected`."""
    began = time.perf_counter()
    total = torch.zeros((), dtype=torch.int64)
    samples = 0
    for batch in loader:
        samples += len(batch)
        total += batch.sum()
    seconds = time.perf_counter() - began
    assert int(total) == expected, "samples are missing, or came twice"
    return samples / seconds


def main() -> None:
    """Prints the median rates, and their ratios to torch's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batches", type=int, default=2000)
    given = parser.parse_args()
    length = BATCH * given.batches
    expected = length * (length - 1) // 2
    loaders = {
        "torch": TorchLoader(Scalars(length), batch_size=BATCH),
        "headrace": headrace.DataLoader(Scalars(length), batch_size=BATCH),
        "headrace, seed=": headrace.DataLoader(Scalars(length), batch_size=BATCH, seed=1),
        "torch, drawing": TorchLoader(Drawing(length), batch_size=BATCH),
        "headrace, seed=, drawing": headrace.DataLoader(Drawing(length), batch_size=BATCH, seed=1),
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(given.rounds):
        for name, loader in loaders.items():
            rates[name].append(rate(loader, expected))
    for name, found in rates.items():
        ratios = [own / other for own, other in zip(found, rates["torch"], strict=True)]
        middle = statistics.median(ratios)
        best = max(found) / max(rates["torch"])
        print(
            f"{name:26} {statistics.median(found):12,.0f} samples/s   {middle:5.2f} of torch (best rates: {best:.2f})"
        )


if __name__ == "__main__":
    main()
