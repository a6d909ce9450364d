"""What comes before the first batch, in a fresh process each time: the start of workers, and shuffles of any size."""

from __future__ import annotations

import io
import json
import os
import resource
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
from benchmarks.datasets import Numbers
from benchmarks.harness import machine
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import apart, fail, in_turn, same
from headrace.core.process.memory import PeakMemory

LOADERS: dict[str, Any] = {"torch": TorchLoader, OURS: headrace.DataLoader}

# -- the start of workers ----------------------------------------------------------------------------------------------

ROW = 1 << 16


class Rows(Dataset[torch.Tensor]):
    """Rows of 64 KB; row i begins with the number i."""

    def __init__(self, gigabytes: float, *, objects: bool) -> None:
        count = int(gigabytes * (1 << 30)) // ROW
        array = np.zeros((count, ROW), np.uint8)
        array[:, :4] = np.arange(count, dtype="<u4").view(np.uint8).reshape(count, 4)
        self.rows: Any = [row.tobytes() for row in array] if objects else array

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(self.rows[index], np.uint8, 4).view("<u4").astype(np.int64))


def first_batches(name: str, rows: tuple[float, bool], workers: int, method: str) -> list[float]:
    """Runs two epochs in this process. Returns the seconds to the first batch of each."""
    gigabytes, objects = rows
    dataset = Rows(gigabytes, objects=objects)
    loader = LOADERS[name](
        dataset, batch_size=64, num_workers=workers, multiprocessing_context=method, prefetch_factor=1
    )
    firsts = []
    for _ in range(2):
        began = time.perf_counter()
        numbers = []
        for batch in loader:
            if not numbers:
                firsts.append(time.perf_counter() - began)
            numbers.append(batch)
        same(torch.cat(numbers).ravel(), torch.arange(len(dataset)))
    return firsts


def peak_of_all(*arguments: Any) -> float:
    """Runs the same, and returns the gigabytes of all processes at their peak."""
    with PeakMemory(os.getpid()) as memory:
        first_batches(*arguments)
    return memory.peak / 1e9


def start(gigabytes: float = 1.0, workers: int = 8, rounds: int = 3, method: str = "spawn") -> list[Table]:
    """How long workers take to start under spawn, and what memory they take: torch's loader and headrace's in turn.

    Each run is a fresh process with a dataset of so many gigabytes in its memory: a NumPy array, or half as much as a
    list of bytes. It times the first batch of two epochs and checks what was delivered. Another run watches the memory
    of the process and all its children (shared pages counted once): to look at the pages of nine processes keeps a core
    busy, so nothing is timed in it.
    """
    firsts, peaks = [], []
    for objects, size in ((False, gigabytes), (True, gigabytes / 2)):
        data = f"{int(size * (1 << 30)) // ROW:,} objects, {size:g} GB" if objects else f"one array, {size:g} GB"

        def run(function: Any, objects: bool = objects, size: float = size) -> dict[str, list[Any]]:
            calls = {
                name: lambda name=name: apart(function, name, (size, objects), workers, method) for name in LOADERS
            }
            return in_turn(calls, rounds, untimed=0)

        found = run(first_batches)
        for epoch, words in enumerate(("", ", second epoch")):
            figures = {name: [one[epoch] for one in found[name]] for name in found}
            firsts.append(Row(f"{data}{words}", figures))
        peaks.append(Row(data, run(peak_of_all)))
    words = f"{workers} workers started by {method}"
    checked = "All samples of both epochs were checked."
    return [
        Table(f"{words}: the first batch", "s", firsts, checked, better="less"),
        Table(f"{words}: peak memory of all processes", "GB", peaks, checked, better="less"),
    ]


# -- shuffles ----------------------------------------------------------------------------------------------------------

BATCHES = 200
BYTES_PER_SAMPLE = 48
"""That `RandomSampler` takes."""

SIZES = (1e6, 1e8, 3e8, 1e9, 1e10)


class Keys(Numbers):
    """Sample i is i, at no cost."""

    def __getitems__(self, keys: list[int]) -> list[int]:
        return keys


def peak() -> int:
    """The most memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def shuffle(name: str, length: int) -> dict[str, float]:
    """Iterates in this process: ms to the first batch, samples per second behind it, MB of growth, the state."""
    own: dict[str, Any] = {"seed": 1} if name == OURS else {}

    def made() -> Any:
        return LOADERS[name](Keys(length), batch_size=256, shuffle=True, **own)

    before, began = peak(), time.perf_counter()
    loader = made()
    iterator = iter(loader)
    batches = [next(iterator)]
    first = time.perf_counter() - began
    began = time.perf_counter()
    batches += [next(iterator) for _ in range(BATCHES)]
    seconds = time.perf_counter() - began
    found = {"first": first * 1e3, "growth": (peak() - before) / 1e6, "rate": BATCHES * 256 / seconds}
    keys = torch.cat(batches)
    if keys.unique().numel() != keys.numel() or not 0 <= int(keys.min()) <= int(keys.max()) < length:
        fail("a sample came twice, or there is no such sample")
    if name != OURS:
        return found

    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    found["state"] = len(json.dumps(loader.state_dict()))
    file.seek(0)
    following = [next(iterator) for _ in range(3)]
    again = made()
    began = time.perf_counter()
    again.load_state_dict(torch.load(file, weights_only=True))
    resumed = iter(again)
    batches = [next(resumed)]
    found["load"] = (time.perf_counter() - began) * 1e3
    same(torch.cat([*batches, next(resumed), next(resumed)]), torch.cat(following))
    return found


def order(sizes: tuple[float, ...] = SIZES, rounds: int = 3) -> list[Table]:
    """What a shuffle costs: time to the first batch, memory, and a state that goes on, for ever larger datasets.

    Each row is a fresh process that iterates `DataLoader(Keys(n), batch_size=256, shuffle=True)` for some batches:
    torch's loader with its RandomSampler, and headrace's with seed=. Memory is what the peak of the process grew by. A
    size that would not fit into this machine's memory is not tried (RandomSampler needs about 48 bytes a sample). For
    headrace the state is saved in the middle, loaded into a new loader, and the batches behind it are compared.
    """
    found: dict[int, dict[str, list[dict[str, float]]]] = {}
    for length in map(int, sizes):
        fits = length * BYTES_PER_SAMPLE <= machine.memory() * 0.7
        names = ("torch", OURS) if fits else (OURS,)
        calls = {name: lambda name=name, length=length: apart(shuffle, name, length) for name in names}
        found[length] = in_turn(calls, rounds, untimed=0)

    def table(title: str, unit: str, key: str, better: Any = "less", notes: tuple[str, ...] = ()) -> Table:
        rows = []
        for length, runs in found.items():
            figures = {name: [run[key] for run in runs[name]] for name in runs if key in runs[name][0]}
            too_large = f"does not fit: about {length * BYTES_PER_SAMPLE / 1e9:.0f} GB"
            missing = {} if "torch" in runs or key == "load" else {"torch": too_large}
            rows.append(Row(f"{length:,} samples", figures, missing))
        checked = "No key came twice, and the three batches after a resume are those that would have come."
        return Table(title, unit, rows, checked, better=better, notes=[*notes])

    states = [run["state"] for runs in found.values() for run in runs[OURS]]
    note = f"A state is {min(states):,.0f} to {max(states):,.0f} bytes of JSON."
    return [
        table("shuffled, to the first batch of 256 keys", "ms", "first"),
        table("memory that the process grew by", "MB", "growth"),
        table("keys after the first batch", "samples/s", "rate", "more"),
        table("a saved state loaded, to the next batch", "ms", "load", notes=(note,)),
    ]
