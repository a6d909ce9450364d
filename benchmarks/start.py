"""How long workers take to start under spawn, and what memory they take: torch's loader and headrace's in turn.

Each run is a fresh process with a dataset of so many gigabytes in its memory (a NumPy array; `--objects`: a list of
bytes). It times the first batch of two epochs and checks what was delivered. Another run watches the memory of the
process and all its children (shared pages counted once): to look at the pages of nine processes ten times a second
keeps a core busy, so nothing is timed in it. Printed are medians over the rounds and of the ratios round by round.

    python benchmarks/start.py [--gigabytes 1] [--workers 8] [--rounds 3] [--objects] [--method spawn] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
import results
from headrace.core.process.memory import tree_memory

ROW = 1 << 16
CHECKED = "All samples of both epochs were checked."


class Rows(Dataset[torch.Tensor]):
    """Rows of 64 KB; row i begins with the number i."""

    def __init__(self, gigabytes: float, objects: bool) -> None:
        count = int(gigabytes * (1 << 30)) // ROW
        array = np.zeros((count, ROW), np.uint8)
        array[:, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(count, 4)
        self.rows: Any = [row.tobytes() for row in array] if objects else array

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(self.rows[index], np.uint8, 4).view("<u4").astype(np.int64))


def measure(given: argparse.Namespace) -> dict[str, float]:
    """Runs two epochs in this process; seconds to the first batch of each, or with `watch` bytes at the peak."""
    warnings.simplefilter("ignore")  # more workers than cores
    dataset = Rows(given.gigabytes, given.objects)
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            peak = max(peak, tree_memory(os.getpid()))

    watcher = threading.Thread(target=watch)
    if given.watch:
        watcher.start()
    cls = TorchLoader if given.one == "torch" else headrace.DataLoader
    loader: Any = cls(
        dataset, batch_size=64, num_workers=given.workers, multiprocessing_context=given.method, prefetch_factor=1
    )
    firsts = []
    for _ in range(2):
        began = time.perf_counter()
        numbers = []
        for batch in loader:
            if not numbers:
                firsts.append(time.perf_counter() - began)
            numbers.append(batch)
        if not torch.equal(torch.cat(numbers).ravel(), torch.arange(len(dataset))):
            raise SystemExit("wrong samples were delivered")
    if not given.watch:
        return {"first": firsts[0], "second": firsts[1]}
    done.set()
    watcher.join()
    return {"peak": peak}


def main() -> None:
    """Runs the rounds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--objects", action="store_true", help="the dataset is a list of bytes")
    parser.add_argument("--method", default="spawn", choices=["spawn", "forkserver", "fork"])
    parser.add_argument("--one", choices=["torch", "headrace"], help=argparse.SUPPRESS)
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    results.option(parser)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given)))
        return
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(given.rounds):
        command = [sys.executable, *sys.argv, "--one"]
        measured: dict[str, dict[str, float]] = {"torch": {}, "headrace": {}}
        for more in ([], ["--watch"]):
            for name, found in measured.items():
                found |= json.loads(subprocess.check_output([*command, name, *more]))
        rounds.append(measured)
    print(f"{given.gigabytes} GB, {given.workers} workers, {given.method}, torch {torch.__version__}")
    print(f"{'':<26} {'torch':>8} {'headrace':>8} {'ratio':>9}")
    titles = {"first": "first batch, s", "second": "first batch, 2nd epoch, s", "peak": "peak memory, GB"}
    rows = {key: row(given, key, rounds) for key in titles}
    for key, title in titles.items():
        theirs, ours = (rows[key].figures[name] for name in ("torch", "headrace"))
        ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
        print(f"{title:<26} {statistics.median(theirs):8.2f} {statistics.median(ours):8.2f} {ratio:8.3f}x")
    words = f"{given.workers} workers started by {given.method}"
    tables = [
        results.Table(f"{words}: the first batch", "s", [rows["first"], rows["second"]], CHECKED, better="less"),
        results.Table(f"{words}: peak memory of all processes", "GB", [rows["peak"]], CHECKED, better="less"),
    ]
    results.write(given.json, tables)


def row(given: argparse.Namespace, key: str, rounds: list[dict[str, dict[str, float]]]) -> results.Row:
    """Returns what was measured of one thing in all rounds: seconds, or gigabytes."""
    data = f"{int(given.gigabytes * (1 << 30)) // ROW:,} objects" if given.objects else "one array"
    title = f"{data}, {given.gigabytes:g} GB" + (", second epoch" if key == "second" else "")
    scale = 1e9 if key == "peak" else 1
    return results.Row(title, {name: [run[name][key] / scale for run in rounds] for name in ("torch", "headrace")})


if __name__ == "__main__":
    main()
