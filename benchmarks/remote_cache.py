"""The cache of a node: what is fetched where it holds half of the data, and its speed where it holds all of them.

    python benchmarks/remote_cache.py [--samples 1000] [--rounds 7] [--json FILE]

Samples of 100 KB from nginx on the same machine, shuffled. The first table counts the bytes of three epochs, beside
those of Belady's rule, which nobody can beat, and of "least recently used", for a cache of as many samples. The second
one reads from a warm cache and from the same files on disk, in turn. Before, every byte is compared with its source.
"""

from __future__ import annotations

import argparse
import collections
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bucket as buckets
import headrace
from bucket import SAMPLE, Bucket
from headrace.storage.fetching import fetcher
from rates import all_in_turn
from results import OURS, Row, Table, option, show, write

EPOCHS = 3
LITTLE = 4 << 20
"""Bytes that are read ahead, so that the memory does not stand in for the cache."""

CHECKED = "Every byte of an epoch was compared with its source before."


def batches(loader: headrace.DataLoader) -> Iterable[Any]:
    """Yields the samples of each batch."""
    for batch in loader:
        yield next(iter(batch.values()))


def belady(uses: Sequence[int], room: int) -> int:
    """Returns how many of the uses fetch a sample, if what is needed last leaves first, or is not stored at all."""
    next_use = [0] * len(uses)
    seen: dict[int, int] = {}
    for at in range(len(uses) - 1, -1, -1):
        next_use[at] = seen.get(uses[at], len(uses))
        seen[uses[at]] = at
    cached: dict[int, int] = {}
    fetched = 0
    for at, sample in enumerate(uses):
        if sample not in cached:
            fetched += 1
            if len(cached) >= room:
                last = max(cached, key=cached.__getitem__)
                if cached[last] < next_use[at]:
                    continue
                del cached[last]
        cached[sample] = next_use[at]
    return fetched


def least_recently_used(uses: Sequence[int], room: int) -> int:
    """Returns how many of the uses fetch a sample, if what was used longest ago leaves first."""
    cached: collections.OrderedDict[int, None] = collections.OrderedDict()
    fetched = 0
    for sample in uses:
        if sample in cached:
            cached.move_to_end(sample)
            continue
        fetched += 1
        cached[sample] = None
        if len(cached) > room:
            cached.popitem(last=False)
    return fetched


def half(bucket: Bucket, folder: Path) -> Table:
    """Counts what three epochs fetch with a cache of half of the data."""
    figures = {}
    limit = bucket.samples * SAMPLE // 2
    for title, ahead in ((OURS, LITTLE), (f"{OURS}, 512 MB ahead in memory", 512 << 20)):
        fetcher.BUDGET = ahead
        cache = folder / f"half-{ahead}"
        loader = bucket.loader("objects", 0, seed=0, cache_dir=cache, cache_limit=limit)
        uses: list[int] = []
        for epoch in range(EPOCHS):
            uses += loader.sampler.keys_at(epoch, np.arange(bucket.samples)).tolist()
            bucket.check(batches(loader))
        figures[title] = [loader.stats.remote.bytes / 1e6]
        del loader
    used = sum(path.stat().st_blocks * 512 for path in cache.rglob("*") if path.is_file())
    notes = [f"The cache took {used / 1e6:.1f} MB of disk for a limit of {limit / 1e6:.1f} MB."]
    room = limit // SAMPLE
    figures["Belady's bound"] = [belady(uses, room) * SAMPLE / 1e6]
    figures["least recently used"] = [least_recently_used(uses, room) * SAMPLE / 1e6]
    title = f"{EPOCHS} epochs of {bucket.samples * SAMPLE / 1e6:.0f} MB, a cache of half of it"
    return Table(title, "MB fetched", [Row("", figures)], CHECKED, better="less", base="Belady's bound", notes=notes)


def whole(bucket: Bucket, folder: Path, rounds: int) -> Table:
    """Reads from a cache that holds everything, and from local files."""
    rows = []
    os.environ.pop("HEADRACE_CACHE_DIR", None)
    for form in buckets.FORMS:
        for workers in (0, 2):
            loaders = {
                "local files": buckets.loader(bucket.open_local(form), workers, seed=0),
                OURS: bucket.loader(form, workers, seed=0, cache_dir=folder / "whole"),
            }
            for loader in loaders.values():
                bucket.check(batches(loader))

            loops: dict[str, Callable[[], None]] = {}
            for name, loader in loaders.items():
                loops[name] = lambda loader=loader: all(len(batch) > 0 for batch in batches(loader)) or None
            rates = all_in_turn(loops, bucket.samples, rounds)
            rows.append(Row(f"{form}, {workers} workers", rates))
            del loaders
    return Table("a warm cache beside local files", "samples/s", rows, CHECKED, base="local files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where objects and cache are made; otherwise a temporary folder")
    option(parser)
    given = parser.parse_args()
    with (
        buckets.serving(given.samples, given.folder) as bucket,
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
    ):
        tables = [half(bucket, Path(folder)), whole(bucket, Path(folder), given.rounds)]
    for table in tables:
        show(table)
    write(given.json, tables, peers=["obstore"])


if __name__ == "__main__":
    main()
