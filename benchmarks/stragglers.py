"""Samples of which a few take much longer: how much of the workers' time is lost, and how soon the first batch comes.

    python benchmarks/stragglers.py [--rounds 5] [--share 1.0] [--json FILE]

Eight workers, batches of 8 (for the first batch: of 64). A sample sleeps, so that two cores can play eight workers. One
percent of the samples, spread by chance, take 50 or 500 times as long. In another table a loop trains for 15 ms a
batch, which is slower than the workers, and waits only for single samples.

*Limit* is arithmetic: the time of all samples, divided by the number of workers; how long a usual one takes is measured
by eight processes that do nothing else. The loaders take turns, an epoch each. In every epoch each sample must come
once, in the order of the sampler unless the loader was asked for any order.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import headrace
from results import Row, Table, option, show
from results import write as write_results

WORKERS = 8
USUAL = 1e-3
"""Seconds that a usual sample sleeps."""

STEP = 15e-3
"""Seconds that a step of training takes."""

HUNDRED = 100
CHECKED = "In every epoch each sample came once, in order where order was asked for."

Loaders = dict[str, Callable[[], Any]]


class Sleeping(Dataset[int]):
    """Sample i is i; one of a hundred sleeps `times` as long as the others."""

    def __init__(self, length: int, usual: float, times: float) -> None:
        self.length, self.usual, self.times = length, usual, times
        chosen = torch.randperm(length, generator=torch.Generator().manual_seed(length))[: length // HUNDRED]
        self.slow = set(chosen.tolist())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> int:
        time.sleep(self.usual * (self.times if key in self.slow else 1))
        return key


def loaders(dataset: Sleeping, batch_size: int, *, kept: bool) -> Loaders:
    """Returns what makes the loaders that are compared."""
    given: dict[str, Any] = {"batch_size": batch_size, "num_workers": WORKERS, "persistent_workers": kept}
    return {
        "torch": lambda: TorchLoader(dataset, **given),
        "torch, in_order=False": lambda: TorchLoader(dataset, in_order=False, **given),
        "headrace": lambda: headrace.DataLoader(dataset, **given),
        "headrace, seed=": lambda: headrace.DataLoader(dataset, seed=1, **given),
    }


def epoch(loader: Any, dataset: Sleeping, *, in_order: bool) -> tuple[float, float]:
    """Returns the seconds of an epoch and those to its first batch. Raises unless all samples come."""
    began = time.perf_counter()
    first = 0.0
    batches = []
    for batch in loader:
        first = first or time.perf_counter() - began
        batches.append(batch)
    seconds = time.perf_counter() - began
    keys = torch.cat(batches)
    if not in_order:
        keys = keys.sort().values
    if not torch.equal(keys, torch.arange(len(dataset))):
        raise SystemExit("samples are missing, came twice, or are out of order")
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
    made = loaders(dataset, 8, kept=kept)
    alive = {name: make() for name, make in made.items()} if kept else {}
    for name, loader in alive.items():
        epoch(loader, dataset, in_order="False" not in name)

    figures: dict[str, list[float]] = {name: [] for name in [*made, "limit"]}
    for _ in range(rounds):
        for name, make in made.items():
            loader = alive[name] if kept else make()
            seconds, _ = epoch(loader, dataset, in_order="False" not in name)
            figures[name].append(len(dataset) / seconds)
        figures["limit"].append(limit_of(dataset))
    return Row(title, figures)


def first_batches(rounds: int) -> list[Row]:
    """Returns the milliseconds to the first batch of an epoch: 64 samples of 4 ms each."""
    dataset = Sleeping(64 * WORKERS, 4e-3, 1)
    rows = []
    for title, kept in (("8 workers, kept between epochs", True), ("8 workers, new in each epoch", False)):
        made = loaders(dataset, 64, kept=kept)
        del made["torch, in_order=False"]
        alive = {name: make() for name, make in made.items()}
        figures: dict[str, list[float]] = {name: [] for name in made}
        for turn in range(rounds + 1):
            for name, loader in alive.items():
                _, first = epoch(loader, dataset, in_order=True)
                if turn:
                    figures[name].append(first * 1e3)
        rows.append(Row(title, figures))
    return rows


def waits(rounds: int) -> list[Row]:
    """Returns the milliseconds for which a loop of 250 steps waits, and the longest of them, behind its first batch."""
    dataset = Sleeping(2000, USUAL, 300)
    made = loaders(dataset, 8, kept=False)
    made["headrace, stragglers='defer'"] = lambda: headrace.DataLoader(
        dataset, batch_size=8, num_workers=WORKERS, seed=1, stragglers="defer"
    )
    all_waits: dict[str, list[float]] = {name: [] for name in made}
    longest: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, make in made.items():
            waited, keys = trained(make())
            if sorted(keys) != list(range(len(dataset))):
                raise SystemExit("samples are missing, or came twice")
            all_waits[name].append(1e3 * sum(waited[1:]))
            longest[name].append(1e3 * max(waited[1:]))
    return [Row("all waits of an epoch", all_waits), Row("the longest wait", longest)]


def trained(loader: Any) -> tuple[list[float], list[int]]:
    """Returns for how many seconds a loop waited for each batch, and the keys that it got."""
    waited = []
    keys: list[int] = []
    asked = time.perf_counter()
    for batch in loader:
        waited.append(time.perf_counter() - asked)
        keys += batch.tolist()
        time.sleep(STEP)
        asked = time.perf_counter()
    return waited, keys


def main() -> None:
    """Measures all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the samples")
    option(parser)
    given = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # more workers than cores: they sleep

    rows = []
    for title, count, times in (
        ("1 % take 50 times as long", 6000, 50),
        ("1 % take 500 times as long", 4000, 500),
        ("all alike", 8000, 1),
    ):
        dataset = Sleeping(int(count * given.share), USUAL, times)
        rows.append(rates(title, dataset, given.rounds, kept=True))
        if times > 1:
            rows.append(rates(f"{title}, first epoch", dataset, given.rounds, kept=False))

    tables = [
        Table("batches of 8, 8 workers", "samples/s", rows, CHECKED),
        Table(
            "a loop that trains for 15 ms a batch of 8; 1 % of the samples take 0.3 s",
            "ms",
            waits(given.rounds),
            "In every epoch each sample came once.",
            better="less",
        ),
        Table("the first batch: 64 samples of 4 ms", "ms", first_batches(given.rounds), CHECKED, better="less"),
    ]
    for table in tables:
        show(table)
    write_results(given.json, tables)


if __name__ == "__main__":
    main()
