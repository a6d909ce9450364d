"""`num_workers="auto"` against the best fixed setting of five loops, found by trying them all.

Every loop first runs with each fixed setting for a few seconds. Then a loader with "auto" begins cold, without any
memory of the others, and has 30 seconds to find its setting; from then on it and the best fixed setting take turns.
Samples are compared by their number in each epoch. The last row has a budget for memory, and workers of 150 MB each:
what they take is measured by another process, ten times a second.

    python benchmarks/auto.py [--seconds 3] [--cold 30] [--only remote] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import headrace
import results
from bottlenecks import Busy, Photos, Remote, spin
from headrace.core.process.memory import shared_out_memory

BUDGET = 1_000_000_000
"""Bytes that workers may take in the last row."""

FIXED = [(0, 2)] + [(workers, prefetch) for workers in (1, 2, 3, 4, 6, 8, 12, 16) for prefetch in (2, 8)]


class Hungry(Dataset[Any]):
    """Samples that wait a little; each worker that loads them keeps `nbytes`."""

    def __init__(self, length: int, nbytes: int) -> None:
        self.length, self.nbytes = length, nbytes
        self.kept: Any = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> tuple[Any, int]:
        if self.kept is None:
            self.kept = np.ones(self.nbytes, np.uint8)
        time.sleep(0.004)
        return np.full(1000, key, np.float32), key


@dataclass
class Loop:
    """A dataset and a training step: seconds of a core, and seconds of an accelerator (slept)."""

    name: str
    data: Callable[[], Dataset[Any]]
    batch_size: int
    busy: float = 0.0
    step: float = 0.0

    def loader(self, **options: Any) -> headrace.DataLoader[Any]:
        """Returns a loader whose order and samples are those of all others of this loop."""
        if options.get("num_workers") not in (0, "auto"):
            options |= {"persistent_workers": True}
        if options.get("num_workers") == 0:
            options.pop("prefetch_factor", None)
        return headrace.DataLoader(self.data(), batch_size=self.batch_size, shuffle=True, seed=0, **options)


LOOPS = (
    Loop("photos", lambda: Photos(640, size=320), 16, step=0.012),
    Loop("remote", lambda: Remote(3200, 0.004), 16, step=0.005),
    Loop("in memory", lambda: Busy(64000), 64),
    Loop("stragglers", lambda: Busy(4000, wait=0.001, slow=tuple(range(100, 4000, 400)), times=100.0), 8, step=0.004),
    Loop("training", lambda: Busy(3200, 0.0002), 16, busy=0.012),
)


class Runner:
    """Trains with a loader for as long as it is asked to, epoch after epoch."""

    def __init__(self, loop: Loop, loader: headrace.DataLoader[Any]) -> None:
        self.loop, self.loader = loop, loader
        self._batches = self._forever()

    def _forever(self) -> Iterator[Any]:
        while True:
            seen = 0
            for batch in self.loader:
                seen += len(batch[1])
                yield batch
            if seen != len(self.loader.dataset):  # type: ignore[arg-type]
                raise SystemExit(f"{self.loop.name}: an epoch had {seen} samples")

    def run(self, seconds: float) -> float:
        """Trains for so long, and returns batches per second."""
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < seconds:
            next(self._batches)
            count += 1
            if self.loop.busy:
                spin(self.loop.busy)
            if self.loop.step:
                time.sleep(self.loop.step)
        return count / spent


def best_fixed(loop: Loop, seconds: float) -> tuple[tuple[int, int], dict[tuple[int, int], float]]:
    """Returns the best of all fixed settings, and the rates of all of them."""
    rates = {}
    for workers, prefetch in FIXED:
        runner = Runner(loop, loop.loader(num_workers=workers, prefetch_factor=prefetch))
        runner.run(0.5)
        rates[workers, prefetch] = runner.run(seconds)
        del runner
        gc.collect()  # its workers end now, and not in the middle of what is measured next
    return max(rates, key=lambda setting: rates[setting]), rates


@dataclass
class Found:
    """What became of a loop: rates in batches per second, one for each turn."""

    best: tuple[int, int]
    chosen: tuple[Any, Any]
    fixed: list[float]
    auto: list[float]
    words: str

    @property
    def ratio(self) -> float:
        """Of auto to the best fixed setting: the median of the turns."""
        return statistics.median(one / other for one, other in zip(self.auto, self.fixed, strict=True))


def compare(loop: Loop, seconds: float, cold: float, turns: int = 5) -> Found:
    """Returns what became of a loop."""
    best, rates = best_fixed(loop, seconds)
    runner = Runner(loop, loop.loader(num_workers="auto", prefetch_factor="auto"))
    runner.run(cold)
    fixed = Runner(loop, loop.loader(num_workers=best[0], prefetch_factor=best[1]))
    fixed.run(1.0)
    pairs = [(runner.run(seconds), fixed.run(seconds)) for _ in range(turns)]
    recording, loader = runner.loader.recording, runner.loader
    settled = [event.time - recording.first_seen for event in recording.events if event.kind == "decided"]
    words = (
        f"best fixed {best[0]} workers x {best[1]}, worst {min(rates.values()):.1f} batches/s; chosen "
        f"{loader.num_workers} x {loader.prefetch_factor}, settled after {max(settled, default=0.0):.0f} s"
    )
    chosen = loader.num_workers, loader.prefetch_factor
    return Found(best, chosen, [rate for _, rate in pairs], [rate for rate, _ in pairs], words)


def watch_memory(pid: int, peak: Any, ended: Any) -> None:
    """Looks at what the workers of a process take, ten times a second."""
    while not ended.wait(0.1):
        peak.value = max(peak.value, shared_out_memory(pid)[1] - shared_out_memory(os.getpid())[0])


def memory_row(budget: int, seconds: float) -> tuple[int, int, int]:
    """Returns the most that workers took under a budget, and what was chosen without one and with one."""
    loop = Loop("hungry", lambda: Hungry(1600, 150_000_000), 16, step=0.002)
    context = multiprocessing.get_context("spawn")
    peak, ended = context.Value("q", 0), context.Event()
    watcher = context.Process(target=watch_memory, args=(os.getpid(), peak, ended), daemon=True)
    watcher.start()
    runner = Runner(loop, loop.loader(num_workers=headrace.Auto(memory=budget)))
    runner.run(seconds)
    ended.set()
    watcher.join()
    free = Runner(loop, loop.loader(num_workers="auto"))
    free.run(seconds)
    return int(peak.value), int(free.loader.num_workers), int(runner.loader.num_workers)


def main() -> None:
    """Runs all loops and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--cold", type=float, default=30.0, help="seconds that auto has to find its setting")
    parser.add_argument("--only", help="only the loop of this name, or 'hungry'")
    results.option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # more workers than cores: on purpose
    rows, notes = [], []
    print(f"{'loop':<12} {'best fixed':>10} {'batches/s':>10} {'auto':>10} {'batches/s':>10} {'ratio':>6}")
    for loop in LOOPS:
        if given.only in (None, loop.name):
            found = compare(loop, given.seconds, given.cold)
            rows.append(results.Row(loop.name, {"best fixed": found.fixed, results.OURS: found.auto}))
            notes.append(f"{loop.name}: {found.words}")
            print(
                f"{loop.name:<12} {found.best!s:>10} {statistics.median(found.fixed):10.1f} {found.chosen!s:>10} "
                f"{statistics.median(found.auto):10.1f} {found.ratio:6.3f}   {found.words}"
            )
    if given.only in (None, "hungry"):
        peak, free, within = memory_row(BUDGET, given.cold)
        notes.append(
            f"with a budget of {BUDGET / 1e6:.0f} MB workers of 150 MB each took at most {peak / 1e6:.0f} MB: "
            f"{within} of them, {free} without the budget"
        )
        print(notes[-1])
    title = "num_workers='auto' and prefetch_factor='auto'"
    checked = "Every epoch had all its samples."
    results.write(given.json, [results.Table(title, "batches/s", rows, checked, base="best fixed", notes=notes)])


if __name__ == "__main__":
    main()
