"""Loops that read over a slow line, each with one planted bottleneck: a part of `bottlenecks.py`.

nginx serves the samples, and `slow_line.py` stands in front of it: 20 ms to and fro, and 200 Mbit/s, or 1 Gbit/s where
the line is not what is looked at. It is one line for all connections, and takes a core itself.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

import headrace
from headrace.data.formats.columns import block_from
from headrace.data.formats.columns.schema import Field, Schema
from headrace.data.formats.registry import open_writer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for the servers of the tests

from tests.servers import nginx  # noqa: E402

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
        raise SystemExit("nginx is not installed (Debian: nginx-light)")

    with tempfile.TemporaryDirectory(prefix="headrace-bottlenecks-") as folder, contextlib.ExitStack() as stack:
        server = stack.enter_context(nginx.running(Path(folder), program))
        host = server.url.partition("//")[2]
        slow = stack.enter_context(_line(host, SLOW))
        fast = stack.enter_context(_line(host, FAST))
        yield Server(server.root, slow, fast, Path(folder, "cache"))


@contextlib.contextmanager
def _line(host: str, rate: float) -> Iterator[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "slow_line.py"), "--to", host]
    command += ["--round-trip", str(ROUND_TRIP), "--rate", str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as line:
        try:
            assert line.stdout is not None
            yield f"http://127.0.0.1:{line.stdout.readline().rpartition(':')[2].strip()}"
        finally:
            line.terminate()


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
    for _ in headrace.DataLoader(data, 64, collate_fn=counted, num_workers=2, shuffle=True, seed=5):
        pass
    return data


def arguments(batch_size: int, **more: Any) -> dict[str, Any]:
    """Returns the arguments of a loader."""
    return {"batch_size": batch_size, "num_workers": 2, "shuffle": True, "seed": 0, "collate_fn": counted, **more}
