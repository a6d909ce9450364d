"""Steps made once or at each access: swipe trajectories, torch and headrace."""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import swipes
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import Loop, apart, exhaust, rates_in_turn

CHECKED = "Every value of every batch was compared with what it should be."


@dataclass(frozen=True)
class Given:
    """How much is measured."""

    trajectories: int
    cut_trajectories: int
    rounds: int
    batches: int


# -- rates -------------------------------------------------------------------------------------------------------------


def rates(folder: Path, given: Given) -> list[Table]:
    """Returns rates without workers, and how long opening the cache takes."""
    source, ready_path = swipes.prepare(folder, given.trajectories)
    ready, raw = swipes.mapped(ready_path), swipes.mapped(source)
    cache = str(folder / "rates-cache")
    began = time.perf_counter()
    rivals = swipes.rivals(source, ready_path, cache)
    rivals["everything stored"][OURS].dataset[0]
    built = time.perf_counter() - began

    rows = []
    for number, (title, line) in enumerate(rivals.items()):
        keys = swipes.shuffled(given.trajectories, given.batches * swipes.BATCH, number)
        keys = keys[: len(keys) // swipes.BATCH * swipes.BATCH]
        few = keys[: max(len(keys) // 4 // swipes.BATCH, 1) * swipes.BATCH]  # for those that make samples one by one
        loops: dict[str, Loop] = {}
        for name, contestant in line.items():
            slow = title != "everything stored" and name not in (OURS, "torch, whole batches by hand")
            some = few if slow else keys
            swipes.check(contestant.loader(some), some, ready, noisy=title != "everything stored")
            loops[name] = functools.partial(once, contestant, some)
        if title == "everything stored":
            loops["baseline copy and pad"] = functools.partial(bare, swipes.bare, ready, keys)
        else:
            loops["baseline loop, the batched steps"] = functools.partial(bare, swipes.bare_steps, raw, keys)
        rows.append(Row(title, rates_in_turn(loops, 1.0, given.rounds)))

    opened = statistics.median(opening(source, cache) for _ in range(9)) * 1e3
    title = f"{given.trajectories:,} trajectories, shuffled, batches of {swipes.BATCH}, 0 workers"
    note = f"Building the cache: {built:.1f} s; opening it: {opened:.1f} ms."
    return [Table(title, "samples/s", rows, CHECKED, notes=[note])]


def once(contestant: swipes.Contestant, keys: Any, workers: int = 0) -> float:
    """Goes through an epoch of these keys. Returns how many they are."""
    exhaust(contestant.loader(keys, workers))
    return float(len(keys))


def bare(loop: Any, columns: swipes.Columns, keys: Any) -> float:
    """A baseline loop over these keys."""
    loop(columns, keys)
    return float(len(keys))


def opening(source: str, cache: str) -> float:
    """Returns the seconds that it takes to open a cache that is there, and to get a sample of it."""
    began = time.perf_counter()
    swipes.staged(source, "all stored", cache, noise=False)[0]
    return time.perf_counter() - began


# -- memory, of processes of their own ---------------------------------------------------------------------------------

LISTED, FLAT, IN_MEMORY = "torch, list of tuples", "torch, flat arrays", "headrace, in memory"


@dataclass(frozen=True)
class Task:
    """What such a process loads."""

    name: str
    cache: Path
    source: str
    ready: str
    batches: int


def build(task: Task) -> bool:
    """Makes what the contestant stores."""
    if task.name == OURS:
        swipes.staged(task.source, "all stored", str(task.cache), noise=False)[0]
    elif task.name == LISTED:
        swipes.write_list(task.ready, task.cache)
    return True


def contestant_of(task: Task) -> swipes.Contestant:
    """Opens what the contestant loads from."""
    if task.name == LISTED:
        return swipes.Contestant(swipes.Listed(task.cache), swipes.collate.pad_arrays)
    if task.name == FLAT:
        return swipes.Contestant(swipes.Flat(swipes.mapped(task.ready), ()), swipes.collate.pad_arrays)
    cache = "memory" if task.name == IN_MEMORY else str(task.cache)
    return swipes.Contestant(swipes.staged(task.source, "all stored", cache, noise=False))


def epoch(task: Task, settled: Any) -> bool:
    """Opens the data, compares some, and goes through an epoch with 4 workers.

    settled: an event that is set when memory should have settled.
    """
    torch.set_num_threads(1)
    contestant = contestant_of(task)
    keys = swipes.shuffled(len(contestant.dataset), task.batches * swipes.BATCH, 0)
    some = keys[: 20 * swipes.BATCH]
    swipes.check(contestant.loader(some), some, swipes.mapped(task.ready), noisy=False)
    for number, _ in enumerate(contestant.loader(keys, workers=4)):
        if number == max(task.batches // 20, 1):
            settled.set()
    return True


def megabytes_of(task: Task) -> list[tuple[float, float]]:
    """Runs `epoch` in a new process, and looks at the memory of all its processes, from when it should have settled."""
    settled = multiprocessing.get_context("spawn").Event()
    before: list[tuple[float, float]] = []
    after: list[tuple[float, float]] = []

    def look(pid: int) -> None:
        total, kept = swipes.footprint(pid)
        (after if settled.is_set() else before).append((total / 1e6, kept / 1e6))

    apart(epoch, task, settled, meanwhile=look)
    return after or before[-1:]


def memory(folder: Path, given: Given) -> list[Table]:
    """Returns how the memory of all processes grows within an epoch of 2,000 batches with 4 workers."""
    source, ready = swipes.prepare(folder, given.trajectories)
    batches = min(2000, given.trajectories // swipes.BATCH)
    seen = {}
    for number, name in enumerate((LISTED, FLAT, IN_MEMORY, OURS)):
        task = Task(name, folder / f"memory-{number}", source, ready, batches)
        apart(build, task)
        seen[name] = megabytes_of(task)

    tables = []
    words = f"{given.trajectories:,} trajectories stored, memory of an epoch of {batches:,} batches, 4 workers"
    for place, ending in ((0, ""), (1, ", without pages of mapped files")):
        sizes = {name: [one[place] for one in looks] for name, looks in seen.items()}
        rows = [
            Row("after a 20th of the epoch", {name: [found[0]] for name, found in sizes.items()}),
            Row("at most from then on", {name: [max(found)] for name, found in sizes.items()}),
        ]
        growth = ", ".join(f"{name} {max(found) / found[0] - 1:+.1%}" for name, found in sizes.items())
        tables.append(Table(f"{words}{ending}", "MB", rows, CHECKED, "less", FLAT, [f"Growth: {growth}."]))
    return tables


# -- cuts --------------------------------------------------------------------------------------------------------------


def cuts(folder: Path, given: Given) -> list[Table]:
    """Returns the rates of the four cuts with 0 and 4 workers."""
    count = min(given.trajectories, given.cut_trajectories)
    source, ready = swipes.prepare(folder, count)
    keys = swipes.shuffled(count, min(given.batches, count // swipes.BATCH) * swipes.BATCH, 0)
    rows = []
    for number, (cut, (stored, access)) in enumerate(swipes.CUTS.items()):
        columns = swipes.mapped(source)
        if stored:
            columns = swipes.build_flat(columns, swipes.one_by_one(stored), folder / f"torch-{number}")
        theirs = swipes.Flat(columns, swipes.one_by_one(access, noise=True))
        contestants = {
            "torch": swipes.Contestant(theirs, swipes.collate.pad_arrays),
            OURS: swipes.Contestant(swipes.staged(source, cut, str(folder / f"headrace-{number}"))),
        }
        for workers in (0, 4):
            loops: dict[str, Loop] = {}
            for name, contestant in contestants.items():
                swipes.check(contestant.loader(keys, workers), keys, swipes.mapped(ready), noisy=True)
                loops[name] = functools.partial(once, contestant, keys, workers)
            rows.append(Row(f"{cut}, {workers} workers", rates_in_turn(loops, 1.0, given.rounds)))
    title = f"four cuts of: normalise, derivatives, tokens, noise; {count:,} trajectories"
    return [Table(title, "samples/s", rows, CHECKED)]


PARTS = {"rates": rates, "memory": memory, "cuts": cuts}


def trajectories(
    trajectories: int = 1_000_000, cut_trajectories: int = 100_000, rounds: int = 5, batches: int = 300,
    parts: tuple[str, ...] = tuple(PARTS),
) -> list[Table]:  # fmt: skip
    """Steps made once or at each access: swipe trajectories, torch and headrace.

    rates   rounds in which all contestants take turns: everything stored, everything made at each access
    memory  the processes of an epoch with 4 workers, in a process of their own each: how it grows
    cuts    everything per access, either half stored, everything stored; 0 and 4 workers

    All read the same mapped trajectories, in random order, in batches of 320, one thread a process. What they deliver
    is compared with the features it should be, value by value; noise may move coordinates by its strength. Torch's
    samples are padded in NumPy, which is quicker than its own `pad_sequence`. "By hand" is a dataset with
    `__getitems__` that makes whole batches by the same batched steps.

    cut_trajectories: of the part cuts, at most. batches: of each timed epoch; a quarter where steps are slow.
    """
    torch.set_num_threads(1)
    given = Given(trajectories, cut_trajectories, rounds, batches)
    with tempfile.TemporaryDirectory() as folder:
        return [table for part in parts for table in PARTS[part](Path(folder), given)]
