"""`num_workers="auto"` against the best fixed setting of five loops, found by trying them all."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import headrace
from benchmarks.datasets import Busy, Numbers, Photos, Remote, spin
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import apart, fail, in_turn
from headrace.core.process.memory import shared_out_memory

BUDGET = 1_000_000_000
"""Bytes that workers may take in the last loop."""

FIXED = [(0, 2)] + [(workers, prefetch) for workers in (1, 2, 3, 4, 6, 8, 12, 16) for prefetch in (2, 8)]


class Hungry(Numbers):
    """Samples that wait a little; each worker that loads them keeps `nbytes`."""

    def __init__(self, length: int, nbytes: int) -> None:
        super().__init__(length)
        self.nbytes = nbytes
        self.kept: Any = None

    def __getitem__(self, key: int) -> Any:
        if self.kept is None:
            self.kept = np.ones(self.nbytes, np.uint8)
        time.sleep(0.004)
        return np.full(1000, key, np.float32), key


@dataclass
class Loop:
    """A dataset and a training step: seconds of a core, and seconds of an accelerator (slept)."""

    name: str
    data: Callable[[], Numbers]
    batch_size: int
    busy: float = 0.0
    step: float = 0.0

    def start(self, **options: Any) -> Runner:
        """Returns a runner whose order and samples are those of all others of this loop."""
        if options.get("num_workers") not in (0, "auto"):
            options |= {"persistent_workers": True}
        if options.get("num_workers") == 0:
            options.pop("prefetch_factor", None)
        loader = headrace.DataLoader(self.data(), batch_size=self.batch_size, shuffle=True, seed=0, **options)
        return Runner(self, loader)


LOOPS = (
    Loop("photos", lambda: Photos(640, size=320), 16, step=0.012),
    Loop("remote", lambda: Remote(3200, 0.004), 16, step=0.005),
    Loop("in memory", lambda: Busy(64000), 64),
    Loop("stragglers", lambda: Busy(4000, wait=0.001, slow=tuple(range(100, 4000, 400)), times=100.0), 8, step=0.004),
    Loop("training", lambda: Busy(3200, 0.0002), 16, busy=0.012),
)
HUNGRY = Loop("hungry", lambda: Hungry(1600, 150_000_000), 16, step=0.002)
NAMES = (*(loop.name for loop in LOOPS), HUNGRY.name)


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
                fail(f"{self.loop.name}: an epoch had {seen} samples")

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


def rates_of_fixed(loop: Loop, seconds: float) -> dict[tuple[int, int], float]:
    """Returns the rates of all fixed settings."""
    rates = {}
    for workers, prefetch in FIXED:
        runner = loop.start(num_workers=workers, prefetch_factor=prefetch)
        runner.run(min(seconds, 0.5))
        rates[workers, prefetch] = runner.run(seconds)
        del runner
        gc.collect()  # its workers end now, and not in the middle of what is measured next
    return rates


def compare(loop: Loop, seconds: float, cold: float) -> tuple[Row, str]:
    """Returns the rates of the best fixed setting and of auto, and in words what was chosen."""
    rates = rates_of_fixed(loop, seconds)
    best = max(rates, key=lambda setting: rates[setting])
    runner = loop.start(num_workers="auto", prefetch_factor="auto")
    runner.run(cold)
    fixed = loop.start(num_workers=best[0], prefetch_factor=best[1])
    fixed.run(min(seconds, 1.0))
    row = Row(loop.name, in_turn({"best fixed": lambda: fixed.run(seconds), OURS: lambda: runner.run(seconds)}, 5))

    loader, recording = runner.loader, runner.loader.recording
    settled = [event.time - recording.first_seen for event in recording.events if event.kind == "decided"]
    return row, (
        f"{loop.name}: best fixed {best[0]} workers x {best[1]}, worst {min(rates.values()):.1f} batches/s; chosen "
        f"{loader.num_workers} x {loader.prefetch_factor}, settled after {max(settled, default=0.0):.0f} s"
    )


def chosen_by_hungry(budget: int, seconds: float) -> int:
    """Returns how many workers are chosen for the hungry loop. budget: bytes, or 0 without one."""
    runner = HUNGRY.start(num_workers=headrace.Auto(memory=budget) if budget else "auto")
    runner.run(seconds)
    return int(runner.loader.num_workers)


def words_of_budget(seconds: float) -> str:
    """Returns in words the most that workers took under a budget, and what was chosen with one and without."""
    most = 0

    def watch(pid: int) -> None:
        nonlocal most
        most = max(most, shared_out_memory(pid)[1])

    within = apart(chosen_by_hungry, BUDGET, seconds, meanwhile=watch)
    free = apart(chosen_by_hungry, 0, seconds)
    return (
        f"with a budget of {BUDGET / 1e6:.0f} MB workers of 150 MB each took at most {most / 1e6:.0f} MB: "
        f"{within} of them, {free} without the budget"
    )


def auto(seconds: float = 3.0, cold: float = 30.0, loops: tuple[str, ...] = NAMES) -> list[Table]:
    """`num_workers="auto"` against the best fixed setting of five loops, found by trying them all.

    Every loop first runs with each fixed setting for some seconds. Then a loader with "auto" begins cold, without any
    memory of the others, and has `cold` seconds to find its setting; from then on it and the best fixed setting take
    turns. Samples are counted in each epoch. The last note is of a loop with a budget for memory, and workers of 150 MB
    each: what they take is measured by another process.
    """
    torch.set_num_threads(1)
    found = [compare(loop, seconds, cold) for loop in LOOPS if loop.name in loops]
    notes = [words for _, words in found]
    if HUNGRY.name in loops:
        notes.append(words_of_budget(cold))
    rows = [row for row, _ in found]
    title = "num_workers='auto' and prefetch_factor='auto'"
    return [Table(title, "batches/s", rows, "Every epoch had all its samples.", base="best fixed", notes=notes)]
