"""Reading through the cache of a node, beside plain local files: samples of 100 KB, warm in the page cache.

Two comparisons, each read in the same random order by turns, chunk by chunk, and every byte compared with its source:
objects of 100 KB, and ranges of 100 KB out of objects of 16 MB in blocks of 1 MiB. A plain file is opened, read and
closed for each sample. Two more lines tell what the first reading of a block costs, which compares its CRC, and what it
costs to insert objects.

    python benchmarks/cache.py [--samples 1000] [--rounds 7] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import results
from headrace.storage.cache import DiskCache

SAMPLE = 100_000
LARGE = 16_000_000
BLOCK = 1 << 20
CHUNK = 50
CHECKED = "Every byte of every sample was compared with its source."

Read = Callable[[int, bytearray], bool]


def timed(readers: dict[str, Read], order: list[int], expected: list[memoryview]) -> dict[str, float]:
    """Microseconds a sample for each reader; they take turns every few samples, in an order that changes."""
    seconds = dict.fromkeys(readers, 0.0)
    outs = [bytearray(SAMPLE) for _ in range(CHUNK)]
    turns = list(readers)
    for start in range(0, len(order), CHUNK):
        chunk = order[start : start + CHUNK]
        random.shuffle(turns)
        for name in turns:
            read = readers[name]
            began = time.perf_counter()
            for sample, out in zip(chunk, outs, strict=False):
                if not read(sample, out):
                    raise SystemExit(f"sample {sample} is not there")
            seconds[name] += time.perf_counter() - began
            for sample, out in zip(chunk, outs, strict=False):
                if out != expected[sample]:
                    raise SystemExit(f"sample {sample} is wrong")
    return {name: value / len(order) * 1e6 for name, value in seconds.items()}


def plain(paths: list[str], starts: list[int]) -> Read:
    def read(sample: int, out: bytearray) -> bool:
        fd = os.open(paths[sample], os.O_RDONLY)
        count = os.preadv(fd, (out,), starts[sample])
        os.close(fd)
        return count == SAMPLE

    return read


def compare(folder: Path, samples: int, rounds: int, size: int) -> tuple[results.Row, float, float]:
    """A row of one comparison, and microseconds a sample for the first reading and for inserting."""
    draw = np.random.default_rng(0)
    per_object = size // SAMPLE
    count = -(-samples // per_object)
    contents = [draw.integers(0, 256, size, np.uint8).tobytes() for _ in range(count)]
    locals_ = []
    for number, data in enumerate(contents):
        path = folder / f"local-{size}" / f"{number:05}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        locals_.append(str(path))

    cache = DiskCache(folder / "cache")
    objects = [cache.open_object(f"s3://bucket/{size}/{number:05}", "e", size, BLOCK) for number in range(count)]
    began = time.perf_counter()
    for cached, data in zip(objects, contents, strict=True):
        if not cached.insert(0, data):
            raise SystemExit("not inserted")
    inserting = (time.perf_counter() - began) / samples * 1e6
    cache.close()

    numbers = [draw.integers(count).item() if size > SAMPLE else sample for sample in range(samples)]
    starts = [int(draw.integers(size - SAMPLE + 1)) for _ in range(samples)]
    expected = [memoryview(contents[n])[start : start + SAMPLE] for n, start in zip(numbers, starts, strict=True)]
    cache = DiskCache(folder / "cache")  # a new use: CRCs are compared at the first reading
    objects = [cache.open_object(f"s3://bucket/{size}/{number:05}", "e", size, BLOCK) for number in range(count)]

    def cached_read(sample: int, out: bytearray) -> bool:
        start = starts[sample]
        return objects[numbers[sample]].read_into(start, start + SAMPLE, out)

    readers = {"plain files": plain([locals_[n] for n in numbers], starts), results.OURS: cached_read}
    order = [*range(samples)]
    first = timed(readers, order, expected)[results.OURS]
    figures: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        random.shuffle(order)
        for name, value in timed(readers, order, expected).items():
            figures[name].append(value)
    cache.close()
    title = f"{samples:,} objects of 100 KB" if size == SAMPLE else f"ranges of 100 KB, {count} objects of 16 MB"
    return results.Row(title, figures), first, inserting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where the files are made; otherwise a temporary folder")
    results.option(parser)
    given = parser.parse_args()

    rows = []
    notes = []
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for size in (SAMPLE, LARGE):
            row, first, inserting = compare(Path(folder), given.samples, given.rounds, size)
            rows.append(row)
            ratios = [a / b for a, b in zip(row.figures["plain files"], row.figures[results.OURS], strict=True)]
            ours, theirs = (statistics.median(row.figures[name]) for name in (results.OURS, "plain files"))
            print(f"{row.title}: {ours:.1f} us through the cache, {theirs:.1f} us from plain files, ", end="")
            print(f"{statistics.median(ratios):.2f}x as fast (rounds {min(ratios):.2f} to {max(ratios):.2f})")
            note = f"{row.title}: {first:.0f} us at the first reading, {inserting:.0f} us for storing, a sample."
            print(f"  {note}")
            notes.append(note)

    table = results.Table("reading 100 KB", "us", rows, CHECKED, better="less", base="plain files", notes=notes)
    results.write(given.json, [table])


if __name__ == "__main__":
    main()
