"""What recording costs: the same epochs with it and without it, in turn, with torch's loader beside them.

Without it means that the loader takes no times at all: neither in the main process nor in workers, where no thread
looks on. Samples are those of the transport benchmark, and every batch is checked.

    python benchmarks/recording.py [--batches 60] [--rounds 11]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader as TorchLoader

import headrace
from headrace.engine.epoch import EpochIterator
from headrace.observe.anatomy import StackSampler
from headrace.observe.stopwatch import NO_TIMES, Stopwatch
from transport import BATCH, ReadySamples, epoch


@contextlib.contextmanager
def no_recording() -> Iterator[None]:
    """Loaders whose workers are started inside of this take no times."""

    def nothing(*_: Any) -> None:
        return None

    with (
        mock.patch.object(EpochIterator, "_note", nothing),
        mock.patch.object(Stopwatch, "start", nothing),
        mock.patch.object(Stopwatch, "made", nothing),
        mock.patch.object(Stopwatch, "stop", lambda _: NO_TIMES),
        mock.patch.object(StackSampler, "__init__", nothing),
        mock.patch.object(StackSampler, "take", lambda _: []),
    ):
        yield


def compare(dataset: ReadySamples, rounds: int, options: dict[str, Any]) -> list[tuple[float, float, float]]:
    """Returns (with recording, without, torch) in GB/s for each round; each begins in turn."""
    recorded, plain, torchs = (
        cls(dataset, batch_size=BATCH, **options) for cls in (headrace.DataLoader,) * 2 + (TorchLoader,)
    )
    found = []
    for turn in range(rounds + 1):
        rates = {}
        order = [("on", recorded), ("off", plain), ("torch", torchs)]
        for name, loader in order[turn % 3 :] + order[: turn % 3]:
            with no_recording() if name == "off" else contextlib.nullcontext():
                rates[name] = epoch(loader, dataset, dataset.check).rate
        if turn:
            found.append((rates["on"], rates["off"], rates["torch"]))
    return found


def main() -> None:
    """Runs all settings and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches of 38.5 MB in an epoch")
    parser.add_argument("--rounds", type=int, default=11, help="timed epochs of each loader")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = ReadySamples(given.batches * BATCH)
    settings: dict[str, dict[str, Any]] = {
        "2 workers, kept between epochs": {"num_workers": 2, "persistent_workers": True},
        "2 workers, new in each epoch": {"num_workers": 2},
        "no workers, one thread": {},
    }
    print(f"{'':<32} {'recorded GB/s':>14} {'not recorded':>13} {'ratio':>7} {'torch':>7}")
    for name, options in settings.items():
        rounds = compare(dataset, given.rounds, options)
        on, off, torchs = (statistics.median(one) for one in zip(*rounds, strict=True))
        ratio = statistics.median(one / other for one, other, _ in rounds)
        print(f"{name:<32} {on:14.2f} {off:13.2f} {ratio:7.3f} {torchs:7.2f}")
    print("every batch of every epoch was checked")


if __name__ == "__main__":
    main()
