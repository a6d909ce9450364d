"""Ready samples on their way to the training loop: torch's loader and headrace's, with guards and without recording."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader

import headrace
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import in_turn
from benchmarks.ready_samples import BATCH, CHECKED, SHAPE, Epoch, ReadySamples, epoch
from headrace.core.process.memory import process_tree
from headrace.telemetry.recorder import Recorder
from headrace.telemetry.stack_sampler import StackSampler
from headrace.telemetry.stopwatch import NO_TIMES, Stopwatch

SLOTS = 3
"""Batches that a process of the ring has room for."""

KEPT: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
NEW: dict[str, Any] = {"num_workers": 2}
NO_TIMES_HERE = (0.0, 0.0, 0.0, math.nan, math.nan, math.nan)
UNWATCHED, UNRECORDED = "headrace, not watched", "headrace, not recorded"


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


def timed(loaders: dict[str, Any], dataset: ReadySamples, rounds: int) -> dict[str, list[Epoch]]:
    """Returns the epochs of each loader, after a first one of each that is checked fully."""
    for loader in loaders.values():
        epoch(loader, dataset, dataset.check_fully)
    calls = {name: functools.partial(epoch, loader, dataset, dataset.check) for name, loader in loaders.items()}
    return in_turn(calls, rounds, untimed=0)


def transport(batches: int = 60, rounds: int = 7) -> list[Table]:
    """How fast ready samples reach the training loop: torch's loader, headrace's, and a ring without a loader.

    Every batch is checked: in an untimed first epoch byte for byte, in the timed ones at three points of each sample
    and by its labels. batches: of 38.5 MB, in an epoch.
    """
    torch.set_num_threads(1)
    dataset = ReadySamples(batches * BATCH)
    rates, firsts = [], []
    for title, options, copied in (
        ("2 workers, kept between epochs", KEPT, False),
        ("2 workers, kept; the loop copies each batch", KEPT, True),
        ("2 workers, new in each epoch", NEW, False),
        ("no workers, one thread", {}, False),
    ):
        loaders: dict[str, Any] = {
            "torch": TorchLoader(dataset, batch_size=BATCH, **options),
            OURS: headrace.DataLoader(dataset, batch_size=BATCH, **options),
        }
        if options:
            loaders["baseline ring"] = Ring(dataset, options["num_workers"])
        if copied:
            loaders = {name: Copied(loader) for name, loader in loaders.items()}
        found = timed(loaders, dataset, rounds)
        rates.append(Row(title, {name: [one.rate for one in epochs] for name, epochs in found.items()}))
        firsts.append(Row(title, {name: [one.first for one in found[name]] for name in ("torch", OURS)}))
    return [
        Table("64x3x224x224 float32, to the training loop", "GB/s", rates, CHECKED),
        Table("the first batch of a warm epoch", "ms", firsts, CHECKED, better="less"),
    ]


def faults(batches: int = 60, rounds: int = 11) -> list[Table]:
    """What watching over workers and samples costs on a clean run: headrace's loader with and without it.

    Watched are a policy for bad samples, a bad-samples log, a limit and a timeout for each sample. Every batch of every
    epoch is checked.
    """
    torch.set_num_threads(1)
    dataset = ReadySamples(batches * BATCH)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        guards = headrace.OnError("replace", max_rate=0.01, log=Path(folder) / "bad.jsonl", timeout=60.0)
        for title, options in (
            ("2 workers, kept between epochs", KEPT),
            ("2 workers, new in each epoch", NEW),
            ("2 threads", {"num_workers": 2, "backend": "thread"}),
            ("no workers", {}),
        ):
            loaders = {
                UNWATCHED: headrace.DataLoader(dataset, batch_size=BATCH, **options),
                OURS: headrace.DataLoader(dataset, batch_size=BATCH, on_error=guards, **options),
            }
            found = timed(loaders, dataset, rounds)
            if loaders[OURS].faults.bad:
                raise SystemExit("sound samples were taken for bad ones")
            rows.append(Row(title, {name: [one.rate for one in epochs] for name, epochs in found.items()}))
    return [Table("64x3x224x224 float32, watched over", "GB/s", rows, CHECKED, base=UNWATCHED)]


@contextlib.contextmanager
def no_recording() -> Iterator[None]:
    """Loaders whose workers are started inside of this take no times."""

    def nothing(*_: Any) -> None:
        return None

    with (
        mock.patch.object(Recorder, "add", nothing),
        mock.patch.object(Stopwatch, "start", nothing),
        mock.patch.object(Stopwatch, "made", nothing),
        mock.patch.object(Stopwatch, "made_here", lambda _: NO_TIMES_HERE),
        mock.patch.object(Stopwatch, "stop", lambda _: NO_TIMES),
        mock.patch.object(StackSampler, "__init__", nothing),
        mock.patch.object(StackSampler, "take", lambda _: []),
    ):
        yield


def recording(batches: int = 60, rounds: int = 300) -> list[Table]:
    """What recording costs: the same epochs with it and without it, in turn.

    Without it the loader takes no times at all: neither in the main process nor in workers, where no thread looks on.
    Epochs are short and many, so that what else the machine does falls on both. The notes have the medians of the
    pairs' ratios, with the interval in which these lie with 95 % (bootstrap). Every batch is checked.
    """
    torch.set_num_threads(1)
    dataset = ReadySamples(batches * BATCH)
    rows, notes = [], []
    for title, options in (
        ("2 workers, kept between epochs", KEPT),
        ("2 workers, new in each epoch", NEW),
        ("no workers, one thread", {}),
    ):
        loaders = {name: headrace.DataLoader(dataset, batch_size=BATCH, **options) for name in (UNRECORDED, OURS)}

        def one(name: str, loader: Any) -> tuple[float, float]:
            with no_recording() if name == UNRECORDED else contextlib.nullcontext():
                before = cpu_seconds()
                rate = epoch(loader, dataset, dataset.check).rate
                return rate, cpu_seconds() - before

        found = in_turn({name: functools.partial(one, name, loader) for name, loader in loaders.items()}, rounds)
        rates, cpu = ({name: [pair[place] for pair in found[name]] for name in found} for place in (0, 1))
        rows.append(Row(title, rates))
        notes.append(f"{title}: rate with recording to without {middle(rates)}")
        if options is not NEW:  # of workers that have ended nobody can tell any more
            notes[-1] += f", CPU time {middle(cpu)}"
    checked = "Every batch was checked at three points of each sample."
    return [Table("64x3x224x224 float32, recorded", "GB/s", rows, checked, base=UNRECORDED, notes=notes)]


def cpu_seconds() -> float:
    """Returns the CPU time of all threads of this process and of those below it, so far; counted in nanoseconds."""
    tasks = (task for pid in process_tree(os.getpid()) for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


def middle(found: dict[str, list[float]]) -> str:
    """Returns the median ratio of headrace to it without recording, and the interval in which that lies with 95 %."""
    ratios = np.array(found[OURS]) / np.array(found[UNRECORDED])
    medians = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return f"{np.median(ratios):.4f} ({low:.4f} to {high:.4f})"
