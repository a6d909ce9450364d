"""`backend="auto"`: what it chooses in twenty starts, ten of them beside programs that keep all cores busy.

    python benchmarks/auto_backend.py [--starts 10] [--rounds 5] [--share 1.0] [--json FILE]

For each kind of data, the rates without workers, with two worker processes and with two threads are measured in turn,
once on the machine as it is and once beside one busy process for each core. A loader with `backend="auto"` is then made
as often as `--starts` says in each of these two states, and runs an epoch, which must have every sample. The figure is
the rate of what it chose, of the better one of no workers and two processes in that state: 1 or more is right.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset

import headrace
from bottlenecks import Photos
from headrace.core.process.machine import cores
from results import Row, Table, option, show
from results import write as write_results
from small_batches import Data, rows_of

CHECKED = "In every epoch of a chosen backend, each sample came once."
BETTER = "better of 0 and 2 workers"
BACKENDS = {"inline": 0, "process": 2, "thread": 2}


class Computed(Dataset[int]):
    """Sample i is i, after some work in Python, which holds the interpreter lock."""

    def __init__(self, length: int, steps: int) -> None:
        self.length, self.steps = length, steps

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        total = 0
        for step in range(self.steps):
            total += step
        return index


class Kind(NamedTuple):
    """A kind of data: what to load, and how large batches are."""

    dataset: Any
    batch_size: int


def kinds(folder: Path, share: float) -> Iterator[tuple[str, Kind]]:
    """Yields what is tried."""
    small: dict[str, Data] = dict(rows_of(folder, share / 2))
    for name in ("scalars, batches of 64", "images 28x28, batches of 64", "windows of 2,049 tokens, batches of 32"):
        yield name, Kind(small[name].ours, small[name].batch_size)
    yield "Python, 10 ms a batch", Kind(Computed(int(3200 * share), 8000), 32)
    yield "photographs, decoded", Kind(Photos(int(320 * share), size=320), 16)


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


def loader_of(kind: Kind, backend: str) -> Any:
    """Returns a loader with a backend."""
    workers = BACKENDS.get(backend, 2)
    given: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "backend": backend}
    return headrace.DataLoader(kind.dataset, kind.batch_size, shuffle=True, **given)


def epoch(loader: Any) -> float:
    """Returns the seconds of an epoch. Raises unless it has all batches."""
    began = time.perf_counter()
    count = 0
    for batch in loader:
        count += 1
        del batch
    if count != len(loader):
        raise SystemExit("batches are missing")
    return time.perf_counter() - began


def rates(kind: Kind, rounds: int) -> dict[str, float]:
    """Returns the batches/s of each backend, the median of the rounds, in which they take turns."""
    loaders = {backend: loader_of(kind, backend) for backend in BACKENDS}
    seconds: dict[str, list[float]] = {backend: [] for backend in loaders}
    for turn in range(rounds + 1):
        for backend, loader in loaders.items():
            spent = epoch(loader)
            if turn:
                seconds[backend].append(spent)
    return {backend: len(loaders[backend]) / statistics.median(values) for backend, values in seconds.items()}


def starts(kind: Kind, count: int) -> list[str]:
    """Returns what was chosen in so many starts."""
    chosen = []
    for _ in range(count):
        loader = loader_of(kind, "auto")
        epoch(loader)
        chosen.append(loader.setting.backend)
    return chosen


def main() -> None:
    """Tries all kinds of data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10, help="in each of the two states")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the data")
    parser.add_argument("--only", default="", help="kinds of data whose names have this text")
    option(parser)
    given = parser.parse_args()
    rows, notes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in kinds(Path(folder), given.share):
            if given.only not in name:
                continue
            for busy in (False, True):
                with busy_machine(busy=busy):
                    found = rates(kind, given.rounds)
                    chosen = starts(kind, given.starts)
                best = max(found["inline"], found["process"])
                state = "all cores busy" if busy else "quiet"
                figures = {
                    BETTER: [best] * given.starts,
                    "headrace": [found[one] for one in chosen],
                }
                rows.append(Row(f"{name}; {state}", figures))
                counts = ", ".join(f"{one} {chosen.count(one)} of {given.starts}" for one in sorted(set(chosen)))
                other = ", ".join(f"{backend} {rate:,.0f}" for backend, rate in found.items())
                right = sum(found[one] >= 0.97 * best for one in chosen)
                notes.append(f"{name}; {state}: {counts}; within 3 % in {right} of {given.starts}. Batches/s: {other}")
                print(notes[-1], flush=True)
    table = Table(
        'backend="auto", the rate of what it chose', "batches/s", rows, CHECKED, base=BETTER,
        notes=notes,
    )  # fmt: skip
    show(table)
    write_results(given.json, [table])


if __name__ == "__main__":
    main()
