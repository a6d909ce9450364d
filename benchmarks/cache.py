"""The cache of a node: what is fetched where it holds half of the data, its rate where it holds all."""

from __future__ import annotations

import collections
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.buckets import COLUMNS, SAMPLE, Bucket, loader_of, samples_of, serving
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import fail, passes, rates_in_turn
from headrace.storage.cache import DiskCache
from headrace.storage.fetching import fetcher

EPOCHS = 3
LITTLE = 4 << 20
"""Bytes that are read ahead, so that the memory does not stand in for the cache."""

CHECKED = "Every byte of an epoch was compared with its source before."
BELADY = "Belady's bound"


def cache(samples: int = 1000, rounds: int = 15) -> list[Table]:
    """The cache of a node: what is fetched where it holds half of the data, and its rate where it holds all of them.

    Samples of 100 KB from nginx on the same machine, shuffled. The first table counts the bytes of three epochs, beside
    those of Belady's rule, which nobody can beat, and of "least recently used", for a cache of as many samples. The
    second one reads from a warm cache and from the same files on disk, in turn. Every byte is compared with its source
    before.
    """
    with serving(samples) as bucket, tempfile.TemporaryDirectory() as folder:
        return [half(bucket, Path(folder)), whole(bucket, Path(folder), rounds)]


def half(bucket: Bucket, folder: Path) -> Table:
    """Counts what three epochs fetch with a cache of half of the data."""
    figures = {}
    limit = bucket.samples * SAMPLE // 2
    for title, ahead in ((OURS, LITTLE), (f"{OURS}, 512 MB ahead in memory", 512 << 20)):
        fetcher.BUDGET = ahead
        kept = folder / f"half-{ahead}"
        loader = loader_of(bucket.open("objects", cache_dir=kept, cache_limit=limit), 0, seed=0)
        uses: list[int] = []
        for epoch in range(EPOCHS):
            uses += loader.sampler.keys_at(epoch, np.arange(bucket.samples)).tolist()
            bucket.check(samples_of(loader))
        figures[title] = [loader.stats.remote.bytes / 1e6]
        del loader
    used = sum(path.stat().st_blocks * 512 for path in kept.rglob("*") if path.is_file())
    notes = [f"The cache took {used / 1e6:.1f} MB of disk for a limit of {limit / 1e6:.1f} MB."]
    room = limit // SAMPLE
    figures[BELADY] = [belady(uses, room) * SAMPLE / 1e6]
    figures["least recently used"] = [least_recently_used(uses, room) * SAMPLE / 1e6]
    title = f"{EPOCHS} epochs of {bucket.samples * SAMPLE / 1e6:.0f} MB, a cache of half of it"
    return Table(title, "MB fetched", [Row("", figures)], CHECKED, better="less", base=BELADY, notes=notes)


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
        fetched += sample not in cached
        cached[sample] = None
        cached.move_to_end(sample)
        if len(cached) > room:
            cached.popitem(last=False)
    return fetched


def whole(bucket: Bucket, folder: Path, rounds: int) -> Table:
    """Reads from a cache that holds everything, and from local files."""
    rows = []
    os.environ.pop("HEADRACE_CACHE_DIR", None)
    for form in COLUMNS:
        for workers in (0, 2):
            loaders = {
                "local files": loader_of(bucket.open_local(form), workers, seed=0),
                OURS: loader_of(bucket.open(form, cache_dir=folder / "whole"), workers, seed=0),
            }
            for loader in loaders.values():
                bucket.check(samples_of(loader))
            rows.append(Row(f"{form}, {workers} workers", rates_in_turn(passes(loaders), bucket.samples, rounds)))
            del loaders, loader
    notes = [first_reading(folder, bucket.samples)]
    return Table("a warm cache beside local files", "samples/s", rows, CHECKED, base="local files", notes=notes)


def first_reading(folder: Path, samples: int) -> str:
    """Returns in words what the first reading of samples in a use takes, which compares their checksums."""
    contents = np.random.default_rng(0).integers(0, 256, (samples, SAMPLE), np.uint8)

    def opened(cache: DiskCache) -> list[Any]:
        return [cache.open_object(f"s3://bucket/{number:05}", "e", SAMPLE, 1 << 20) for number in range(samples)]

    cache = DiskCache(folder / "reads")
    if not all(one.insert(0, data.tobytes()) for one, data in zip(opened(cache), contents, strict=True)):
        fail("not inserted")
    cache.close()

    cache = DiskCache(folder / "reads")  # a new use
    objects = opened(cache)
    out = bytearray(SAMPLE)
    microseconds = []
    for _ in range(2):
        seconds = 0.0
        for one, data in zip(objects, contents, strict=True):
            began = time.perf_counter()
            found = one.read_into(0, SAMPLE, out)
            seconds += time.perf_counter() - began
            if not found or out != data.data:
                fail("a sample is wrong")
        microseconds.append(seconds / samples * 1e6)
    cache.close()
    return "A sample takes {:.0f} us at its first reading in a use, then {:.0f} us.".format(*microseconds)
