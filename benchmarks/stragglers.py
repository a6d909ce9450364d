"""Samples of which a few take much longer: the time of workers that is lost, and how soon the first batch comes."""

from __future__ import annotations

import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader

import headrace
from benchmarks.datasets import Numbers
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import each_once, in_turn, same

WORKERS = 8
USUAL = 1e-3
"""Seconds that a usual sample sleeps."""

STEP = 15e-3
"""Seconds that a step of training takes."""

HUNDRED = 100
ANY_ORDER = "torch, in_order=False"
CHECKED = "In every epoch each sample came once, in order where order was asked for."

Loaders = dict[str, Callable[[], Any]]


class Sleeping(Numbers):
    """Sample i is i; one of a hundred sleeps `times` as long as the others."""

    def __init__(self, length: int, usual: float, times: float) -> None:
        super().__init__(length)
        self.usual, self.times = usual, times
        chosen = torch.randperm(length, generator=torch.Generator().manual_seed(length))[: length // HUNDRED]
        self.slow = set(chosen.tolist())

    def __getitem__(self, key: int) -> Any:
        time.sleep(self.usual * (self.times if key in self.slow else 1))
        return key


def makers(dataset: Sleeping, batch_size: int, *, kept: bool) -> Loaders:
    """Returns what makes the loaders that are compared."""
    given: dict[str, Any] = {"batch_size": batch_size, "num_workers": WORKERS, "persistent_workers": kept}
    return {
        "torch": lambda: TorchLoader(dataset, **given),
        ANY_ORDER: lambda: TorchLoader(dataset, in_order=False, **given),
        OURS: lambda: headrace.DataLoader(dataset, **given),
        "headrace, seed=": lambda: headrace.DataLoader(dataset, seed=1, **given),
    }


def epoch(loader: Any, name: str) -> tuple[float, float]:
    """Returns the seconds of an epoch and those to its first batch. Ends the program unless all samples come."""
    began = time.perf_counter()
    first = 0.0
    batches = []
    for batch in loader:
        first = first or time.perf_counter() - began
        batches.append(batch)
    seconds = time.perf_counter() - began
    keys = torch.cat(batches)
    if name == ANY_ORDER:
        each_once(keys, len(loader.dataset))
    else:
        same(keys, torch.arange(len(loader.dataset)))
    return seconds, first


def limit_of(dataset: Sleeping) -> float:
    """Returns the samples/s of workers that never wait."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(WORKERS)
    times = context.Array("d", WORKERS)

    def sleep_usual(number: int) -> None:
        together.wait()
        began = time.perf_counter()
        for _ in range(HUNDRED):
            time.sleep(dataset.usual)
        times[number] = (time.perf_counter() - began) / HUNDRED

    processes = [context.Process(target=sleep_usual, args=(number,)) for number in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    usual = statistics.mean(times)
    return WORKERS / (usual + (max(dataset.times, 1) - 1) * dataset.usual / HUNDRED)


def rates(title: str, dataset: Sleeping, rounds: int, *, kept: bool) -> Row:
    """Returns the samples/s of all loaders. kept: the workers, after an epoch that is not measured."""
    calls: dict[str, Callable[[], float]] = {}
    for name, make in makers(dataset, 8, kept=kept).items():
        alive = make() if kept else None

        def rate(name: str = name, make: Callable[[], Any] = make, alive: Any = alive) -> float:
            seconds, _ = epoch(alive or make(), name)
            return len(dataset) / seconds

        calls[name] = rate
    calls["limit"] = functools.partial(limit_of, dataset)
    return Row(title, in_turn(calls, rounds, untimed=int(kept)))


def first_batches(rounds: int) -> Table:
    """Returns the milliseconds to the first batch of an epoch: 64 samples of 4 ms each."""
    dataset = Sleeping(64 * WORKERS, 4e-3, 1)
    rows = []
    for title, kept in (("8 workers, kept between epochs", True), ("8 workers, new in each epoch", False)):
        loaders = {name: make() for name, make in makers(dataset, 64, kept=kept).items() if name != ANY_ORDER}
        calls = {name: functools.partial(epoch, loader, name) for name, loader in loaders.items()}
        found = in_turn(calls, rounds)
        rows.append(Row(title, {name: [first * 1e3 for _, first in epochs] for name, epochs in found.items()}))
    return Table("the first batch: 64 samples of 4 ms", "ms", rows, CHECKED, better="less")


def waits(rounds: int, count: int) -> Table:
    """Returns the milliseconds for which a loop waits, and the longest of them, behind its first batch."""
    dataset = Sleeping(count, USUAL, 300)
    made = makers(dataset, 8, kept=False)
    made["headrace, stragglers='defer'"] = lambda: headrace.DataLoader(
        dataset, batch_size=8, num_workers=WORKERS, seed=1, stragglers="defer"
    )
    found = in_turn({name: functools.partial(waits_of, make) for name, make in made.items()}, rounds, untimed=0)
    rows = [
        Row(title, {name: [measure(waited) for waited in epochs] for name, epochs in found.items()})
        for title, measure in (("all waits of an epoch", sum), ("the longest wait", max))
    ]
    title = "a loop that trains for 15 ms a batch of 8; 1 % of the samples take 0.3 s"
    return Table(title, "ms", rows, "In every epoch each sample came once.", better="less")


def waits_of(make: Callable[[], Any]) -> list[float]:
    """Returns for how many milliseconds a loop waited for each batch behind the first one."""
    loader = make()
    waited = []
    keys: list[int] = []
    asked = time.perf_counter()
    for batch in loader:
        waited.append(1e3 * (time.perf_counter() - asked))
        keys += batch.tolist()
        time.sleep(STEP)
        asked = time.perf_counter()
    each_once(keys, len(loader.dataset))
    return waited[1:]


def stragglers(rounds: int = 5, share: float = 1.0) -> list[Table]:
    """Samples of which a few take much longer: how much of the workers' time is lost, and how soon a first batch comes.

    Eight workers, batches of 8 (for the first batch: of 64). A sample sleeps, so that two cores can play eight workers.
    One percent of the samples, spread by chance, take 50 or 500 times as long. In another table a loop trains for 15 ms
    a batch, which is slower than the workers, and waits only for single samples.

    *Limit* is arithmetic: the time of all samples, divided by the number of workers; how long a usual one takes is
    measured by eight processes that do nothing else. In every epoch each sample must come once, in the order of the
    sampler unless the loader was asked for any order. share: of the samples.
    """
    rows = []
    for title, count, times in (
        ("1 % take 50 times as long", 6000, 50),
        ("1 % take 500 times as long", 4000, 500),
        ("all alike", 8000, 1),
    ):
        dataset = Sleeping(int(count * share), USUAL, times)
        rows.append(rates(title, dataset, rounds, kept=True))
        if times > 1:
            rows.append(rates(f"{title}, first epoch", dataset, rounds, kept=False))
    first = first_batches(rounds)
    return [Table("batches of 8, 8 workers", "samples/s", rows, CHECKED), waits(rounds, int(2000 * share)), first]
