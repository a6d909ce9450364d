"""Loaders whose batches go to a device, in the ways that are compared, and windows of their epochs that are timed."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
from benchmarks.harness.gpu import Gpu, noise

BATCH = 64
"""Samples of a batch."""

SETTLED = 5.0
"""Seconds after which it is not waited any longer for workers to fall idle."""

Batch = list[torch.Tensor]
Way = Callable[[], Iterator[Batch]]
"""Begins an epoch. Yields batches on the device: rows uint8 [samples, bytes], and keys int64 [samples]."""


class Rows(Dataset[tuple[torch.Tensor, int]]):
    """Random rows that are there already; a sample is one of them, and its key."""

    def __init__(self, nbytes: int, length: int, rows: int = BATCH) -> None:
        """nbytes: of a row, a multiple of 8. length: samples of an epoch."""
        self.rows = noise(rows * nbytes).view(rows, nbytes)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int) -> tuple[torch.Tensor, int]:
        if key >= self._length:
            raise IndexError(key)
        return self.rows[key % len(self.rows)], key


class Checker:
    """Compares on the device, on one stream: the rows of batches with those of their dataset, by the sums of words."""

    def __init__(self, gpu: Gpu, dataset: Rows) -> None:
        """For the current stream."""
        self._gpu = gpu
        self._rows = len(dataset.rows)
        self.sums = gpu.moved(dataset.rows.view(torch.int64).sum(1))
        self._wrong = gpu.ones((1,), torch.int64)
        gpu.run(self._wrong.zero_)
        gpu.synchronize()

    def look(self, batch: Batch) -> None:
        """Counts the rows of a batch that are wrong. Does not wait."""
        self._gpu.run(lambda: self.compare(batch))

    def compare(self, batch: Batch) -> None:
        """As `look`, where a graph is recorded: kernels alone."""
        rows, keys = batch
        found = rows.view(torch.int64).sum(1)
        self._wrong.add_((found != self.sums[keys % self._rows]).sum())

    def wrong(self) -> int:
        """Waits for the device, and returns how many rows were wrong."""
        self._gpu.synchronize()
        return int(self._wrong)


def loaders_of(gpu: Gpu, dataset: Rows, ready: int) -> dict[str, Any]:
    """Returns loaders whose workers make `ready` batches ahead: torch's, and headrace's, page-locked and on the device.

    Torch's is left out where /dev/shm has no room for its batches.
    """
    workers = gpu.pick(8, 2)
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "num_workers": workers,
        "prefetch_factor": ready // workers,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }
    loaders: dict[str, Any] = {
        "headrace, pin_memory": headrace.DataLoader(dataset, pin_memory=True, **options),
        "headrace, device": headrace.DataLoader(dataset, device="cuda", **options),
    }
    # The last one to begin: a process that is forked beside its pin thread may wait for ever for a lock of that.
    if room_in_shm() > 1.1 * BATCH * dataset.rows[0].nbytes * (ready + workers):
        loaders["torch"] = TorchLoader(dataset, pin_memory=gpu.pins_in_thread, **options)
    return loaders


def room_in_shm() -> int:
    """Returns how many bytes /dev/shm has room for, where torch's workers put batches."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return 0


def moved_in_the_loop(gpu: Gpu, loader: Iterable[Batch]) -> Iterator[Batch]:
    """Yields batches that the loop moves when it gets them, on its own stream."""
    for batch in loader:
        yield [gpu.moved(part) for part in batch]


def one_ahead(
    gpu: Gpu, loader: Iterable[Batch], prepared: Callable[[Batch], Batch] = lambda batch: batch
) -> Iterator[Batch]:
    """Yields batches that were moved on a stream of their own while the loop had the one before: the idea of timm.

    prepared: what else is done on that stream.
    """
    side = gpu.new_stream()
    under_way: deque[Batch] = deque()
    for batch in loader:
        with gpu.using(side):
            under_way.append(prepared([gpu.moved(part) for part in batch]))
        if len(under_way) > 1:
            yield under_way.popleft()
        # What the loop asks for from here on comes behind the copy.
        gpu.wait_for(side)
        for part in under_way[-1]:
            gpu.lend(part, gpu.stream())
    yield from under_way


def ways_of(gpu: Gpu, loaders: dict[str, Any]) -> dict[str, Way]:
    """Returns the ways of batches to the device that are compared, in the order in which loaders may begin."""
    ways: dict[str, Way] = {
        "headrace, pin_memory": lambda: moved_in_the_loop(gpu, loaders["headrace, pin_memory"]),
        "headrace, device": lambda: iter(loaders["headrace, device"]),
    }
    if "torch" in loaders:
        ways["torch pinned, non_blocking"] = lambda: moved_in_the_loop(gpu, loaders["torch"])
        ways["timm's idea"] = lambda: one_ahead(gpu, loaders["torch"])
    return ways


def seconds_per_step(
    gpu: Gpu, way: Way, steps: int, step: Callable[[Batch], object], after: Callable[[Batch], object]
) -> float:
    """Returns the seconds of a step of the loop, over batches that workers have made already.

    The first step is not timed, nor are those behind `steps` others: so each that is timed has one copy and one
    computation, also where copies are one ahead. after: looks at the batches of the others.
    """
    batches = way()
    after(next(batches))
    if not gpu.is_simulated:
        wait_until_idle()
    gpu.synchronize()

    began = time.perf_counter()
    for batch in itertools.islice(batches, steps):
        step(batch)
    gpu.synchronize()
    seconds = (time.perf_counter() - began) / steps
    for batch in batches:
        after(batch)
    return seconds


def wait_until_idle() -> None:
    """Waits until this process and its children have nothing to do, or `SETTLED` seconds."""
    ends = time.monotonic() + SETTLED
    before = _ticks()
    while time.monotonic() < ends:
        time.sleep(0.1)
        now = _ticks()
        if now - before <= 1:  # that of this loop
            return
        before = now


def _ticks() -> int:
    """Returns the clock ticks of processor time that this process and its children have taken."""
    ours = os.getpid()
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if ours in (int(words[1]), int(path.parent.name)):
            ticks += int(words[11]) + int(words[12])
    return ticks
