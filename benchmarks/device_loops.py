"""Loops over real loaders whose batches go to a GPU: seconds of a step, memory of the device, and every byte of it.

Experiments 5 to 8 of `benchmarks/device.py`.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
from benchmarks.harness.device_loaders import (
    BATCH,
    Batch,
    Checker,
    Rows,
    Way,
    loaders_of,
    moved_in_the_loop,
    one_ahead,
    room_in_shm,
    seconds_per_step,
    ways_of,
)
from benchmarks.harness.figures import Budget, Figures, in_turn_within
from benchmarks.harness.gpu import Gpu, noise
from benchmarks.harness.machine import memory

OURS = "headrace, device"

READY = min(6 * 10**9, memory() // 16)
"""Bytes of batches that a loader has ready, at most."""

# -- 5 -----------------------------------------------------------------------------------------------------------------


def loops(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """Seconds of a step over the longer one of copy and computation, for four payloads and three computations."""
    payloads = gpu.pick([9_633_792, 38_535_168, 154_140_672, 368_050_176], [65_536, 131_072])
    for place, nbytes in enumerate(payloads):
        _loops_of(gpu, figures, budget.share(len(payloads) - place), nbytes)
        gc.collect()


def _loops_of(gpu: Gpu, figures: Figures, budget: Budget, nbytes: int) -> None:
    """Measures batches of one size."""
    workers = gpu.pick(8, 2)
    ready = max(2, min(8, READY // nbytes // workers)) * workers
    steps = ready - 3
    size = f"{nbytes / 1e6:.1f} MB"
    dataset = Rows(nbytes // BATCH, BATCH * ready)
    loaders = loaders_of(gpu, dataset, ready)
    if "torch" not in loaders:
        figures.skip(f"{size}: torch and timm's idea", f"/dev/shm has {room_in_shm() >> 20} MiB")
    ways = ways_of(gpu, loaders)
    checker = Checker(gpu, dataset)
    for way in ways.values():
        # All slots come once, and are page-locked.
        seconds_per_step(gpu, way, steps, checker.look, checker.look)

    target = gpu.empty((nbytes,))
    source = gpu.pinned(nbytes)
    copies = functools.partial(_repeated, steps, lambda: gpu.copy(target, source))
    copy = min(gpu.seconds(copies) for _ in range(3)) / steps
    shares = gpu.pick([0.5, 1.0, 2.0], [1.0])
    for place, share in enumerate(shares):
        compute = functools.partial(gpu.matmuls, gpu.matmuls_for(share * copy))
        parties: dict[str, Callable[[], float]] = {
            "copy": lambda: gpu.seconds(copies) / steps,
            "compute": functools.partial(_seconds_of, gpu, steps, compute),
        }
        for name, way in ways.items():
            step = functools.partial(_computed, compute)
            parties[name] = functools.partial(seconds_per_step, gpu, way, steps, step, checker.look)
        found = in_turn_within(parties, gpu.pick(5, 1), budget.share(len(shares) - place))
        _tell_loops(figures, f"{size}, computing {share:g} of a copy", found)
    wrong = checker.wrong()
    figures.add(f"{size}: wrong rows", wrong, goal="0", met=wrong == 0)


def _tell_loops(figures: Figures, what: str, found: dict[str, list[float]]) -> None:
    """Tells the seconds of each way's steps over those of the longer one of copy and computation."""
    limits = [max(pair) for pair in zip(found.pop("copy"), found.pop("compute"), strict=True)]
    ratios = {}
    for name, values in found.items():
        ratios[name] = median(value / limit for value, limit in zip(values, limits, strict=True))
        goal, met = "", None
        if name == OURS:
            goal, met = "<= 1.03 of the longer one of copy and computation", ratios[name] <= 1.03
        ms = {
            "ms_per_step": [value * 1e3 for value in values],
            "ms_of_the_longer_one": [limit * 1e3 for limit in limits],
        }
        figures.add(f"{what}: {name}", ratios[name], "x", goal=goal, met=met, **ms)
    best = min(ratio for name, ratio in ratios.items() if name != OURS)
    behind = ratios[OURS] / best
    figures.add(f"{what}: {OURS}, to the best other", behind, "x", goal="<= 1.02", met=behind <= 1.02)


def _repeated(count: int, work: Callable[[], object]) -> None:
    for _ in range(count):
        work()


def _seconds_of(gpu: Gpu, steps: int, compute: Callable[[], object]) -> float:
    """Returns the seconds of one of several computations."""
    return gpu.seconds(functools.partial(_repeated, steps, compute)) / steps


def _computed(compute: Callable[[], object], batch: Batch) -> None:
    """A step of training: it has the batch, and computes."""
    compute()


# -- 6 -----------------------------------------------------------------------------------------------------------------


def launch_bound(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """A loop of many tiny kernels, which a thread that takes the interpreter's lock delays."""
    nbytes = gpu.pick(38_535_168, 65_536)
    kernels = gpu.pick(5_000, 20)
    workers = gpu.pick(8, 2)
    # An epoch has no end, so that workers are always ahead.
    loaders = loaders_of(gpu, Rows(nbytes // BATCH, 1 << 40), 2 * workers)
    if "torch" not in loaders:
        figures.skip("with torch's pin thread", "/dev/shm has no room")
    pinned = [gpu.pinned(nbytes).view(BATCH, -1), gpu.pinned(8 * BATCH).view(torch.int64)]
    epochs: dict[str, Iterator[Batch]] = {
        name: way() for name, way in ways_of(gpu, loaders).items() if name != "timm's idea"
    }
    epochs["no loader"] = moved_in_the_loop(gpu, itertools.repeat(pinned))
    number = gpu.ones((64,), torch.float32)

    def step(batches: Iterator[Batch]) -> float:
        began = time.perf_counter()
        batch = next(batches)
        for _ in range(kernels):
            number.add_(1)
        gpu.synchronize()
        del batch
        return time.perf_counter() - began

    for batches in epochs.values():
        for _ in range(gpu.pick(25, 2)):
            step(batches)
    block = gpu.pick(25, 2)
    parties = {name: functools.partial(_steps, step, batches, block) for name, batches in epochs.items()}
    found = in_turn_within(parties, gpu.pick(16, 1), budget)
    tails = {}
    for name, blocks in found.items():
        times = np.concatenate(blocks) * 1e3
        tails[name] = float(np.percentile(times, 99))
        figures.add(f"{name}: half of {len(times)} steps within", float(np.percentile(times, 50)), "ms")
        figures.add(f"{name}: 99 % of them within", tails[name], "ms", longest=float(times.max()))
    for name in sorted(tails.keys() - {"no loader"}):
        ratio = tails[name] / tails["no loader"]
        goal, met = ("<= 1.03", ratio <= 1.03) if name.startswith("headrace") else ("", None)
        figures.add(f"{name}: 99 % of steps, to no loader", ratio, "x", goal=goal, met=met)


def _steps(step: Callable[[Iterator[Batch]], float], batches: Iterator[Batch], count: int) -> list[float]:
    return [step(batches) for _ in range(count)]


# -- 7 -----------------------------------------------------------------------------------------------------------------


class Ragged(Dataset[torch.Tensor]):
    """Samples of lengths that differ."""

    def __init__(self, length: int, largest: int) -> None:
        """largest: bytes."""
        self.memory = noise(largest)
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: int) -> torch.Tensor:
        if key >= self._length:
            raise IndexError(key)
        share = random.Random(key).uniform(1 / 16, 1)
        return self.memory[: int(share * len(self.memory))]


def device_memory(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """The most memory of the device that two loaders take at once, over ten epochs of batches of many sizes."""
    largest = gpu.pick(16 << 20, 1 << 16)
    dataset = Ragged(gpu.pick(20, 6), largest)
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    pinned = [TorchLoader(dataset, pin_memory=gpu.pins_in_thread, **options) for _ in range(2)]
    ours = [headrace.DataLoader(dataset, device="cuda", **options) for _ in range(2)]
    ways: dict[str, list[Way]] = {
        OURS: [functools.partial(_alone, loader) for loader in ours],
        "torch pinned, non_blocking": [functools.partial(_moved_alone, gpu, loader) for loader in pinned],
        "timm's idea, a stream for each epoch": [functools.partial(_ahead_alone, gpu, loader) for loader in pinned],
    }
    for loader in pinned:
        # In turn: a process that is forked beside a pin thread at work may wait for ever for a lock of that.
        for _ in loader:
            pass
    for place, (name, both) in enumerate(ways.items()):
        peaks = _peaks(gpu, both, gpu.pick(10, 3), budget.share(len(ways) - place))
        mb = [peak / 1e6 for peak in peaks]
        goal, met = "", None
        growth = mb[-1] - mb[len(mb) // 2]
        if name == OURS:
            goal, met = "0", growth == 0
        figures.add(f"{name}: most memory", mb[-1], "MB", epochs=mb)
        figures.add(f"{name}: in largest batches", peaks[-1] / largest, "", expected="2 loaders x (1 ahead + 2)")
        figures.add(f"{name}: growth in the second half of {len(mb)} epochs", growth, "MB", goal=goal, met=met)


def _alone(loader: Any) -> Iterator[Batch]:
    return iter(loader)


def _moved_alone(gpu: Gpu, loader: Any) -> Iterator[Batch]:
    return moved_in_the_loop(gpu, ([batch] for batch in loader))


def _ahead_alone(gpu: Gpu, loader: Any) -> Iterator[Batch]:
    return one_ahead(gpu, ([batch] for batch in loader))


def _peaks(gpu: Gpu, ways: list[Way], epochs: int, budget: Budget) -> list[int]:
    """Returns the most bytes that were taken up to the end of each epoch, beside what was in use before."""
    gc.collect()
    gpu.synchronize()
    gpu.forget_peak()
    before = gpu.peak()
    peaks: list[int] = []
    while len(peaks) < epochs and not (peaks and budget.is_over()):
        for batches in zip(*[way() for way in ways], strict=True):
            gpu.matmuls(2)
            gpu.synchronize()
            del batches
        peaks.append(gpu.peak() - before)
    gpu.synchronize()
    return peaks


# -- 8 -----------------------------------------------------------------------------------------------------------------


def random_steps(gpu: Gpu, figures: Figures, budget: Budget) -> None:
    """What a loop may do with batches, in any order, on two streams: the device compares every row."""
    dataset = Rows(gpu.pick(16 << 10, 1 << 10), gpu.pick(64 * BATCH, 6 * BATCH))
    program = Program(gpu, dataset, seed=1)
    steps = gpu.pick(10_000, 120)
    done = 0
    while done < steps and not budget.is_over():
        program.step()
        done += 1
    wrong = program.end()
    figures.add("random steps", done, goal=f"{steps}", met=done == steps, of_each_kind=program.counts)
    figures.add("rows compared on the device", program.rows, goal="> 0", met=program.rows > 0)
    figures.add("wrong rows", wrong, goal="0", met=wrong == 0)
    why = "is not on this machine"
    if shutil.which("compute-sanitizer") is not None:
        why = "run `compute-sanitizer --target-processes all python -m benchmarks.device --only 8`"
    figures.skip("the same under compute-sanitizer", why)


class Program:
    """One random loop over two loaders: one brings batches to the device, the other one page-locks them."""

    def __init__(self, gpu: Gpu, dataset: Rows, seed: int) -> None:
        self._gpu = gpu
        self._chance = random.Random(seed)
        options: dict[str, Any] = {
            "batch_size": BATCH,
            "shuffle": True,
            "seed": seed,
            "multiprocessing_context": "fork",
        }
        options |= {"num_workers": gpu.pick(4, 1), "persistent_workers": True}
        self._loaders = {
            "device": headrace.DataLoader(dataset, device="cuda", **options),
            "pinned": headrace.DataLoader(dataset, pin_memory=True, **options),
        }
        self._epochs = {name: iter(loader) for name, loader in self._loaders.items()}
        self._streams = [gpu.stream(), gpu.new_stream()]
        self._checkers = []
        for stream in self._streams:
            with gpu.using(stream):
                self._checkers.append(Checker(gpu, dataset))
        self._held: list[tuple[int, Batch]] = []
        self._steps: dict[str, Callable[[int], None]] = {
            "on the device": self._on_the_device,
            "on the device, kept": self._kept,
            "a kept one, dropped": self._dropped,
            "on the device, written to": self._written_there,
            "page-locked, dropped at once": self._dropped_here,
            "page-locked, written to": self._written_here,
            "memory of the loop's own": self._own_memory,
            "busy": self._busy,
        }
        self.counts = dict.fromkeys([*self._steps, "epochs broken off"], 0)
        self.rows = 0

    def step(self) -> None:
        """Does something."""
        name = self._chance.choice(list(self._steps))
        self.counts[name] += 1
        stream = self._chance.randrange(2)
        with self._gpu.using(self._streams[stream]):
            self._steps[name](stream)
        if self._chance.random() < 0.003:
            broken = self._chance.choice(list(self._epochs))
            del self._epochs[broken]
            self._epochs[broken] = iter(self._loaders[broken])
            self.counts["epochs broken off"] += 1

    def end(self) -> int:
        """Looks at all that is kept. Returns how many rows were wrong."""
        while self._held:
            self._dropped(0)
        return sum(checker.wrong() for checker in self._checkers)

    def _next(self, name: str) -> Batch:
        batch = next(self._epochs[name], None)
        if batch is None:
            self._epochs[name] = iter(self._loaders[name])
            batch = next(self._epochs[name])
        return list(batch)

    def _look(self, stream: int, batch: Batch) -> None:
        self._checkers[stream].look(batch)
        self.rows += len(batch[1])

    def _on_the_device(self, stream: int) -> None:
        self._look(stream, self._next("device"))

    def _kept(self, stream: int) -> None:
        batch = self._next("device")
        self._look(stream, batch)
        self._held.append((stream, batch))
        if len(self._held) > 8:
            self._dropped(stream)

    def _dropped(self, _: int) -> None:
        if not self._held:
            return
        stream, batch = self._held.pop(self._chance.randrange(len(self._held)))
        with self._gpu.using(self._streams[stream]):
            self._look(stream, batch)

    def _written_there(self, stream: int) -> None:
        batch = self._next("device")
        self._look(stream, batch)
        self._gpu.run(lambda: batch[0].fill_(0x5A))

    def _dropped_here(self, stream: int) -> None:
        here = self._next("pinned")
        there = [self._gpu.moved(part) for part in here]
        del here
        self._look(stream, there)

    def _written_here(self, stream: int) -> None:
        here = self._next("pinned")
        there = [self._gpu.moved(part) for part in here]
        self._gpu.synchronize()
        here[0].fill_(0x5A)
        self._look(stream, there)

    def _own_memory(self, stream: int) -> None:
        largest = self._checkers[stream].sums.numel() << 14
        memory = self._gpu.empty((self._chance.randint(1, largest),))
        self._gpu.run(lambda: memory.fill_(0xA5))

    def _busy(self, stream: int) -> None:
        self._gpu.matmuls(self._chance.randint(1, 20))
