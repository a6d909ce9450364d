"""A bucket behind a slow line: headrace and peers, each in its best setting, and how long a loop waits for them."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import peers, slow_line
from benchmarks.buckets import BATCH, SAMPLE, Bucket, loader_of, samples_of, serving
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import apart, fail, in_turn

SHARE = 0.9
"""Of the line, which the loop with steps needs."""

WORKERS = {
    OURS: (0, 1, 2),
    "s3torchconnector": (8, 16),
    "litdata": (0, 2),
    "streaming": (0, 2),
    "webdataset": (0, 2),
}
"""The numbers of workers that are tried."""

LINE = "the line"


@dataclass(frozen=True)
class Seen:
    """What one run showed."""

    rate: float
    """Samples a second, from before the data were opened to the last batch."""
    later: float
    """Samples a second behind the first batch."""
    waiting: float
    """Percentage of the time behind the first batch in which the loop waited."""
    first: float
    """Seconds until the first batch."""


def batches_of(bucket: Bucket, name: str, workers: int) -> Iterable[Any]:
    """Returns the batches of a contender: samples of uint8."""
    peers.set_environment(bucket.url)
    if name == OURS:
        return samples_of(loader_of(bucket.open("objects"), workers))
    return peers.PEERS[name](bucket, workers)


def check(bucket: Bucket, name: str, workers: int) -> bool:
    """Compares an epoch."""
    bucket.check(batches_of(bucket, name, workers))
    return True


def run(bucket: Bucket, name: str, workers: int, step: float) -> Seen:
    """Reads an epoch. step: seconds that each step of the loop takes."""
    began = time.perf_counter()
    batches = iter(batches_of(bucket, name, workers))
    count = 0
    waited = 0.0
    first = len(next(batches))
    since = time.perf_counter()
    before_first = since - began
    # Up to the last batch: what takes a contender apart then is none of the loop's waiting.
    while first + count < bucket.samples:
        time.sleep(step)
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        count += len(batch)
    seconds = time.perf_counter() - since
    if count + first != bucket.samples or next(batches, None) is not None:
        fail(f"{name}: {count + first} samples came, of {bucket.samples}")
    return Seen(bucket.samples / (before_first + seconds), count / seconds, 100 * waited / seconds, before_first)


def best_settings(bucket: Bucket, names: list[str], step: float) -> dict[str, tuple[int, int]]:
    """Returns the numbers of workers with which each contender is quickest, and with which a loop waits least."""
    found = {}
    for name in names:
        rates = {workers: apart(run, bucket, name, workers, 0.0).rate for workers in WORKERS[name]}
        waits = {workers: apart(run, bucket, name, workers, step).waiting for workers in WORKERS[name]}
        found[name] = max(rates, key=rates.__getitem__), min(waits, key=waits.__getitem__)
        tried = [f"{workers} workers {rates[workers]:,.0f}/s, waits {waits[workers]:.0f} %" for workers in rates]
        print(f"{name}: {'; '.join(tried)}", flush=True)
    return found


def line(round_trip: float = 0.02, rate: float = 1e9, samples: int = 3000, rounds: int = 3) -> list[Table]:
    """A bucket behind a slow line: headrace and peers, each in its best setting, and how long a loop waits for them.

    Samples of 100 KB, shuffled, from nginx behind a slow line, by default with 20 ms and 1 Gbit/s: 1,250 samples a
    second. Each run is a process of its own, whose clock begins before data and loader are opened; another one begins
    with the first batch. Trials find out the best number of workers of each contender: with which it is quickest, and
    with which a loop waits least. Then they read in turn, first as fast as they can, then with steps in the loop that
    take as long as 0.9 of the line needs for a batch. Before, every byte is compared with its source. Peers that are
    not installed are left out:

    pip install s3torchconnector litdata mosaicml-streaming webdataset
    """
    step = BATCH / (SHARE * rate / 8 / SAMPLE)
    missing = {name: why for name in WORKERS if name != OURS and (why := peers.missing(name))}
    names = [name for name in WORKERS if name not in missing]
    with serving(samples) as served:
        if "streaming" in names:
            peers.fill_mds(served)
        port = int(served.url.rpartition(":")[2])
        with slow_line.running(port, round_trip, rate) as slow:
            bucket = replace(served, url=f"http://127.0.0.1:{slow}")
            best = best_settings(bucket, names, step)
            for name, (quickest, _) in best.items():
                apart(check, bucket, name, quickest)
            calls = {}
            for name, (quickest, calmest) in best.items():
                calls[name, "fast"] = functools.partial(apart, run, bucket, name, quickest, 0.0)
                calls[name, "steps"] = functools.partial(apart, run, bucket, name, calmest, step)
            seen = in_turn(calls, rounds, untimed=0)
    return tables_of(seen, best, missing, f"{round_trip * 1e3:.0f} ms, {rate / 1e9:g} Gbit/s", rate / 8 / SAMPLE, step)


def tables_of(
    seen: dict[Any, list[Seen]], best: dict[str, tuple[int, int]], missing: dict[str, str], title: str, limit: float,
    step: float,
) -> list[Table]:  # fmt: skip
    """Returns what was seen as tables. limit: samples a second that the line takes."""

    def figures(kind: str, field: str) -> dict[str, list[float]]:
        return {name: [getattr(one, field) for one in seen[name, kind]] for name in best}

    rounds = len(next(iter(seen.values())))
    rates, later = ({LINE: [limit] * rounds, **figures("fast", field)} for field in ("rate", "later"))
    first = figures("fast", "first")
    notes = []
    for name, (quickest, _) in best.items():
        if statistics.median(later[name]) > limit:
            del later[name]
            notes.append(f"{name} fetches before its first batch what comes behind it")
        notes.append(f"{name}: {quickest} workers, the first batch after {statistics.median(first[name]):.2f} s")
    calmest = [f"{name}: {workers} workers" for name, (_, workers) in best.items()]
    waits = Row("", figures("steps", "waiting"), missing)
    checked = "Before the rounds, every byte of each contender's samples was compared with its source."
    behind = "reading behind the first batch"
    return [
        Table(f"reading from the start, {title}", "samples/s", [Row("", rates, missing)], checked, "more", LINE, notes),
        Table(behind, "samples/s", [Row("", later, missing)], checked, base=LINE),
        Table(
            f"waiting, steps of {step * 1e3:.0f} ms", "% of the time", [waits], checked, "less", "s3torchconnector",
            calmest,
        ),
    ]  # fmt: skip
