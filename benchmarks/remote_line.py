"""A bucket behind a slow line: headrace and peers, each in its best setting, and how long a loop waits for them.

    python benchmarks/remote_line.py [--round-trip 0.02] [--rate 1e9] [--samples 3000] [--rounds 3] [--json FILE]

Samples of 100 KB, shuffled, from nginx behind `slow_line.py`, by default with 20 ms and 1 Gbit/s: 1,250 samples a
second. Each run is a process of its own, whose clock begins before data and loader are opened; another one begins with
the first batch. Trials find out the best number of workers of each contender: with which it is quickest, and with which
a loop waits least. Then they read in turn, first as fast as they can, then with steps in the loop that take as long as
0.9 of the line needs for a batch. Before, every byte is compared with its source.

    pip install s3torchconnector litdata mosaicml-streaming webdataset      # the peers
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bucket as buckets
from bucket import BATCH, SAMPLE, Bucket
from results import OURS, Row, Table, option, show, write

CHECKED = "Before the rounds, every byte of each contender's samples was compared with its source."
SHARE = 0.9
"""Of the line, which the loop with steps needs."""

# The numbers of workers that are tried.
SETTINGS = {
    OURS: (0, 1, 2),
    "s3torchconnector": (8, 16),
    "litdata": (0, 2),
    "streaming": (0, 2),
    "webdataset": (0, 2),
}
MODULES = {OURS: "obstore"}


@dataclass(frozen=True)
class Seen:
    """What one run showed."""

    rate: float
    """Samples a second, from before the data were opened to the last batch."""
    later: float
    """Samples a second behind the first batch."""
    waiting: float
    """Share of the time behind the first batch in which the loop waited."""
    first: float
    """Seconds until the first batch."""


def run(bucket: Bucket, name: str, workers: int, step: float, check: bool) -> Seen:
    """Reads an epoch in a process of its own. Raises SystemExit if that fails."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(bucket, name, workers, step, check, theirs))
    process.start()
    theirs.close()
    try:
        seen: Seen = ours.recv()
    except EOFError:
        raise SystemExit(f"{name} with {workers} workers failed") from None
    finally:
        process.join()
    return seen


def _run(bucket: Bucket, name: str, workers: int, step: float, check: bool, answer: Any) -> None:
    buckets.set_environment(bucket.url)
    begun = time.perf_counter()
    batches = iter(batches_of(bucket, name, workers))
    if check:
        bucket.check(batches)
        answer.send(Seen(0, 0, 0, 0))
        return

    count = 0
    waited = 0.0
    first = len(next(batches))
    since = time.perf_counter()
    before_first = since - begun
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
        raise SystemExit(f"{name}: {count + first} samples came, of {bucket.samples}")
    answer.send(Seen(bucket.samples / (before_first + seconds), count / seconds, waited / seconds, before_first))


def batches_of(bucket: Bucket, name: str, workers: int) -> Iterator[Any]:
    """Yields the batches of a contender: samples of uint8."""
    if name != OURS:
        peer: Callable[[Bucket, int], Iterable[Any]] = getattr(buckets, name)
        yield from peer(bucket, workers)
        return

    for batch in bucket.loader("objects", workers):
        yield batch["data"]


def slow_line(url: str, round_trip: float, rate: float) -> tuple[subprocess.Popen[str], str]:
    """Starts a slow line to a server. Returns its process and its URL."""
    script = str(Path(__file__).with_name("slow_line.py"))
    command = [sys.executable, script, "--to", url.removeprefix("http://"), "--rate", str(rate)]
    process = subprocess.Popen([*command, "--round-trip", str(round_trip)], stdout=subprocess.PIPE, text=True)
    line = (process.stdout or sys.stdin).readline()
    return process, "http://" + line.split()[-1]


@dataclass(frozen=True)
class Settings:
    """Numbers of workers of a contender."""

    quickest: int
    calmest: int
    """With which a loop with steps waits least."""


def best_settings(bucket: Bucket, step: float, missing: dict[str, str]) -> dict[str, Settings]:
    """Tries the numbers of workers of each contender. step: seconds of a step in the loop that waits."""
    found = {}
    for name, numbers in SETTINGS.items():
        if why := buckets.missing(MODULES.get(name, name)):
            missing[name] = why
            continue
        rates = {workers: run(bucket, name, workers, 0.0, check=False).rate for workers in numbers}
        waits = {workers: run(bucket, name, workers, step, check=False).waiting for workers in numbers}
        found[name] = Settings(max(rates, key=rates.__getitem__), min(waits, key=waits.__getitem__))
        tried = [f"{workers} workers {rates[workers]:,.0f}/s, waits {waits[workers]:.0%}" for workers in numbers]
        print(f"  {name}: {'; '.join(tried)}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trip", type=float, default=0.02, help="seconds")
    parser.add_argument("--rate", type=float, default=1e9, help="bits a second")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    option(parser)
    given = parser.parse_args()

    line_rate = given.rate / 8 / SAMPLE
    step = BATCH / (SHARE * line_rate)
    missing: dict[str, str] = {}
    with buckets.serving(given.samples) as served:
        if buckets.missing("streaming") is None:
            buckets.fill_mds(served)
        process, url = slow_line(served.url, given.round_trip, given.rate)
        try:
            bucket = replace(served, url=url)
            settings = best_settings(bucket, step, missing)
            for name, best in settings.items():
                run(bucket, name, best.quickest, 0.0, check=True)
            fast: dict[str, list[Seen]] = {name: [] for name in settings}
            with_steps: dict[str, list[Seen]] = {name: [] for name in settings}
            for _ in range(given.rounds):
                for name, best in settings.items():
                    fast[name].append(run(bucket, name, best.quickest, 0.0, check=False))
                    with_steps[name].append(run(bucket, name, best.calmest, step, check=False))
        finally:
            process.terminate()
            process.wait()

    title = f"{given.round_trip * 1e3:.0f} ms, {given.rate / 1e9:g} Gbit/s"
    rates = {"the line": [line_rate] * given.rounds}
    later = {"the line": [line_rate] * given.rounds}
    waits = {}
    notes = []
    calmest = []
    for name, best in settings.items():
        rates[name] = [seen.rate for seen in fast[name]]
        waits[name] = [100 * seen.waiting for seen in with_steps[name]]
        later[name] = [seen.later for seen in fast[name]]
        if statistics.median(later[name]) > line_rate:
            del later[name]
            notes.append(f"{name} fetches before its first batch what comes behind it")
        first = statistics.median(seen.first for seen in fast[name])
        notes.append(f"{name}: {best.quickest} workers, the first batch after {first:.2f} s")
        calmest.append(f"{name}: {best.calmest} workers")
    reading = Table(f"reading from the start, {title}", "samples/s", [Row("", rates, missing)], CHECKED)
    reading.base = "the line"
    reading.notes = notes
    behind = Table("reading behind the first batch", "samples/s", [Row("", later, missing)], CHECKED)
    behind.base = "the line"
    waiting = Table(f"waiting, steps of {step * 1e3:.0f} ms", "% of the time", [Row("", waits, missing)], CHECKED)
    waiting.better = "less"
    waiting.base = "s3torchconnector"
    waiting.notes = calmest
    tables = [reading, behind, waiting]
    for table in tables:
        show(table)
    write(given.json, tables, peers=["obstore", "s3torchconnector", "litdata", "mosaicml-streaming", "webdataset"])


if __name__ == "__main__":
    main()
