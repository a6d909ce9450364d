"""Loops that read over a slow line, each with one planted bottleneck."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.servers import nginx
from torch.utils.data import Dataset, Sampler

import headrace
from benchmarks import slow_line
from benchmarks.bottlenecks import Plant, table_of
from benchmarks.harness.table import Table
from benchmarks.harness.turns import exhaust, fail
from headrace.data.formats.columns import block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer

ROUND_TRIP = 0.02
SLOW, FAST = 200e6, 1e9
"""Bits a second."""

SCHEMA = Schema((Field("data", "bytes"),))


@dataclass
class Server:
    """nginx behind two lines, and a folder for caches."""

    root: Path
    slow: str
    fast: str
    caches: Path

    def put(self, name: str, form: str, count: int, size: int) -> str:
        """Writes samples of so many bytes, if they are not there yet. Returns their path on the server."""
        folder = self.root / "b" / name
        if not folder.exists():
            folder.parent.mkdir(exist_ok=True)
            rng = np.random.default_rng(0)
            writer = open_writer(folder, SCHEMA, form)
            for _ in range(0, count, 100):
                writer.append(block_from(SCHEMA, [{"data": rng.bytes(size)} for _ in range(100)]))
            writer.seal()
        return f"b/{name}"

    def cache(self) -> Path:
        """Returns an empty folder for a cache; the ones before go."""
        shutil.rmtree(self.caches, ignore_errors=True)
        return self.caches


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Runs a server until the block ends."""
    program = nginx.find_nginx()
    if program is None:
        fail("nginx is not installed (Debian: nginx-light)")

    with tempfile.TemporaryDirectory(prefix="headrace-bottlenecks-") as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(nginx.running(Path(folder), program))
        port = int(server.url.rpartition(":")[2])
        lines = [stack.enter_context(slow_line.running(port, ROUND_TRIP, rate)) for rate in (SLOW, FAST)]
        slow, fast = (f"http://127.0.0.1:{line}" for line in lines)
        yield Server(server.root, slow, fast, Path(folder, "cache"))


class Backwards(Sampler[int]):
    """An order of the user's own, which nobody knows ahead."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length - 1, -1, -1))


def counted(samples: Sequence[dict[str, Any]]) -> tuple[None, list[int]]:
    """Collates samples to their lengths."""
    return None, [len(sample["data"]) for sample in samples]


def warmed(data: Dataset[Any]) -> Dataset[Any]:
    """Returns data of which a cache has everything."""
    exhaust(headrace.DataLoader(data, 64, collate_fn=counted, num_workers=2, shuffle=True, seed=5))
    return data


def shuffled(batch_size: int, **more: Any) -> dict[str, Any]:
    """Returns the arguments of a loader."""
    return {"batch_size": batch_size, "num_workers": 2, "shuffle": True, "seed": 0, "collate_fn": counted, **more}


def plants(server: Server) -> tuple[Plant, ...]:
    """Returns the loops that read over a network."""
    alone = {"batch_size": 2, "num_workers": 0, "collate_fn": counted}
    kept = shuffled(16, persistent_workers=True)

    def large(**words: Any) -> Dataset[Any]:
        return headrace.open(f"{server.slow}/{server.put('large', 'folder', 600, 100_000)}", **words)

    def half() -> Dataset[Any]:
        return headrace.open(f"{server.slow}/{server.put('half', 'folder', 600, 50_000)}")

    def small() -> Dataset[Any]:
        return headrace.open(f"{server.fast}/{server.put('small', 'folder', 12_000, 4_000)}")

    def shards() -> Dataset[Any]:
        url = f"{server.fast}/{server.put('shards', 'webdataset', 12_000, 4_000)}"
        return headrace.open(url).stream(shuffle=1000)

    def cached(limit: str | None) -> Dataset[Any]:
        return large(cache_dir=server.cache(), cache_limit=limit)

    return (
        Plant("network-limits", large, shuffled(16), 0.01, fixed_data=half),
        Plant("network-limits", large, kept, 0.01, epochs=4, fixed_data=lambda: warmed(cached(None))),
        Plant(
            "latency-limits", large, {**alone, "sampler": Backwards(600)}, 0.010,
            fixed={**alone, "shuffle": True, "seed": 0},
        ),
        Plant(
            "small-objects", small, shuffled(32), 0.005, fixed_data=shards, samples=12_000,
            fixed={"batch_size": 32, "num_workers": 2, "collate_fn": counted},
        ),
        Plant("cache-too-small", lambda: cached("10MB"), kept, 0.01, epochs=4, fixed_data=lambda: cached("75MB")),
    )  # fmt: skip


def bottlenecks_network(rounds: int = 3, only: str = "") -> list[Table]:
    """Loops that read over a slow line, each with one planted bottleneck; see `bottlenecks`.

    nginx serves the samples behind a line with 20 ms to and fro, and 200 Mbit/s, or 1 Gbit/s where the line is not what
    is looked at. It is one line for all connections, and takes a core itself.
    """
    torch.set_num_threads(1)
    with serving() as server:
        return table_of(plants(server), rounds, only)
