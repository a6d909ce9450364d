"""What recording costs: the same epochs with it and without it, in turn, with torch's loader beside them.

Without it means that the loader takes no times at all: neither in the main process nor in workers, where no thread
looks on. Samples are those of the transport benchmark, and every batch is checked. Epochs are short and many, with
recording and without it directly one after the other, so that what else the machine does falls on both; the ratio is
the median of the pairs', with the interval in which that lies with 95 % (bootstrap). CPU is that of all processes.

    python benchmarks/recording.py [--batches 60] [--rounds 300]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader

import headrace
from headrace.core.process.memory import process_tree
from headrace.loader.iterator import LoaderIterator
from headrace.telemetry.stack_sampler import StackSampler
from headrace.telemetry.stopwatch import NO_TIMES, Stopwatch
from transport import BATCH, ReadySamples, epoch


@contextlib.contextmanager
def no_recording() -> Iterator[None]:
    """Loaders whose workers are started inside of this take no times."""

    def nothing(*_: Any) -> None:
        return None

    with (
        mock.patch.object(LoaderIterator, "_note", nothing),
        mock.patch.object(Stopwatch, "start", nothing),
        mock.patch.object(Stopwatch, "made", nothing),
        mock.patch.object(Stopwatch, "stop", lambda _: NO_TIMES),
        mock.patch.object(StackSampler, "__init__", nothing),
        mock.patch.object(StackSampler, "take", lambda _: []),
    ):
        yield


def cpu_seconds() -> float:
    """Returns the CPU time of all threads of this process and of those below it, so far; counted in nanoseconds."""
    tasks = (task for pid in process_tree(os.getpid()) for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


def compare(dataset: ReadySamples, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Returns GB/s (on, off, torch) and CPU seconds (on cpu, off cpu) of each round; torch's of each tenth."""
    loaders = {name: headrace.DataLoader(dataset, batch_size=BATCH, **options) for name in ("on", "off")}
    loaders["torch"] = TorchLoader(dataset, batch_size=BATCH, **options)
    found: dict[str, list[float]] = {name: [] for name in ("on", "off", "torch", "on cpu", "off cpu")}
    for turn in range(-1, rounds):
        pair = ["on", "off"] if turn % 2 else ["off", "on"]
        for name in pair + ["torch"] * (turn % 10 <= 0):
            with no_recording() if name == "off" else contextlib.nullcontext():
                before = cpu_seconds()
                rate = epoch(loaders[name], dataset, dataset.check).rate
                spent = cpu_seconds() - before
            if turn >= 0:
                found[name].append(rate)
                found.get(f"{name} cpu", []).append(spent)
    return {name: np.array(values) for name, values in found.items()}


def middle(ratios: np.ndarray) -> str:
    """Returns the median of ratios [n], and the interval in which that lies with 95 %."""
    chance = np.random.default_rng(0)
    medians = np.median(chance.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(ratios):.4f} ({low:.4f} to {high:.4f})"


def main() -> None:
    """Runs all settings and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches of 38.5 MB in an epoch")
    parser.add_argument("--rounds", type=int, default=300, help="timed pairs of epochs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = ReadySamples(given.batches * BATCH)
    settings: dict[str, dict[str, Any]] = {
        "2 workers, kept between epochs": {"num_workers": 2, "persistent_workers": True},
        "2 workers, new in each epoch": {"num_workers": 2},
        "no workers, one thread": {},
    }
    for name, options in settings.items():
        found = compare(dataset, given.rounds, options)
        rates = ", ".join(f"{key} {statistics.median(found[key]):.2f}" for key in ("on", "off", "torch"))
        print(f"{name}: {rates} GB/s")
        print(f"  rate with recording / without: {middle(found['on'] / found['off'])}")
        if options.get("persistent_workers") or not options:  # of workers that have ended nobody can tell any more
            print(f"  CPU with recording / without:  {middle(found['on cpu'] / found['off cpu'])}", flush=True)
    print("every batch of every epoch was checked")


if __name__ == "__main__":
    main()
