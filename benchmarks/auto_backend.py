"""`backend="auto"`: what it chooses, on a quiet machine and beside programs that keep all cores busy."""

from __future__ import annotations

import contextlib
import functools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
from benchmarks.datasets import Numbers, Photos
from benchmarks.harness.table import Row, Table
from benchmarks.harness.turns import count_batches, rates_in_turn
from benchmarks.small_batches import rows_of
from headrace.core.process.machine import cores

NAMES = {"inline": "no workers", "process": "2 processes", "thread": "2 threads"}
CHOSEN = "chosen by auto"
WORKERS = {"inline": 0, "process": 2, "thread": 2, "auto": 2}
SMALL = ("scalars, batches of 64", "images 28x28, batches of 64", "windows of 2,049 tokens, batches of 32")


class Computed(Numbers):
    """Sample i is i, after some work in Python, which holds the interpreter lock."""

    def __getitem__(self, index: int) -> Any:
        total = 0
        for step in range(8000):
            total += step
        return index


def kinds(folder: Path, share: float) -> Iterator[tuple[str, Any, int]]:
    """Yields what is tried: its name, the data, and the size of batches."""
    small = dict(rows_of(folder, share / 2))
    for name in SMALL:
        yield name, small[name].ours, small[name].batch_size
    yield "Python, 10 ms a batch", Computed(int(3200 * share)), 32
    yield "photographs, decoded", Photos(int(320 * share), size=320), 16


@contextlib.contextmanager
def busy_machine(*, busy: bool) -> Iterator[None]:
    """Keeps all cores busy with other processes."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores() * busy)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def loader_of(data: Any, batch_size: int, backend: str) -> Any:
    """Returns a loader with a backend."""
    workers = WORKERS[backend]
    return headrace.DataLoader(
        data, batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0, backend=backend
    )


def choices(data: Any, batch_size: int, count: int) -> list[str]:
    """Returns what was chosen in so many starts, each of them with an epoch."""
    chosen = []
    for _ in range(count):
        loader = loader_of(data, batch_size, "auto")
        count_batches(loader)
        chosen.append(loader.setting.backend)
    return chosen


def auto_backend(starts: int = 10, rounds: int = 5, share: float = 1.0, only: str = "") -> list[Table]:
    """`backend="auto"`: what it chooses in twenty starts, ten of them beside programs that keep all cores busy.

    For each kind of data, the rates without workers, with two worker processes and with two threads are measured in
    turn, once on the machine as it is and once beside one busy process for each core. A loader with `backend="auto"` is
    then made some times in each of these two states, and runs an epoch, which must have every batch.
    """
    rows = []
    right = made = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data, batch_size in kinds(Path(folder), share):
            for state in ("quiet", "all cores busy") if only in name else ():
                with busy_machine(busy=state != "quiet"):
                    loaders = {one: loader_of(data, batch_size, one) for one in WORKERS if one != "auto"}
                    loops = {one: functools.partial(count_batches, loader) for one, loader in loaders.items()}
                    turns = rates_in_turn(loops, len(loaders["inline"]), rounds)
                    chosen = choices(data, batch_size, starts)

                rates = {one: statistics.median(values) for one, values in turns.items()}
                best = max(rates["inline"], rates["process"])
                right += sum(rates[one] >= 0.97 * best for one in chosen)
                made += starts
                counts = ", ".join(f"{NAMES[one]}: {chosen.count(one)} of {starts}" for one in sorted(set(chosen)))
                figures = {NAMES[one]: values for one, values in turns.items()}
                rows.append(Row(f"{name}; {state}", figures, {CHOSEN: counts}))
    notes = [f"{right} of {made} times, the choice was within 3 % of the better one of no workers and 2 processes"]
    checked = "In every epoch of a chosen backend, each batch came."
    return [Table('backend="auto": what it chose', "batches/s", rows, checked, base=NAMES["inline"], notes=notes)]
