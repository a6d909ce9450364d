"""A bucket that nginx serves on this machine: samples of 100 KB, as objects of their own, in tar shards, in Parquet."""

from __future__ import annotations

import contextlib
import functools
import io
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.servers import nginx

import headrace
from benchmarks.harness.turns import each_once, fail, same
from headrace.data.formats.tar.kept_index import keep_index

SAMPLE = 100_000
"""Bytes of a sample. The first eight are its number."""

BUCKET = "bucket"
BATCH = 32
COLUMNS = {"objects": "data", "tar": "bin", "parquet": "bin"}
"""By form: the column that has the samples."""

SHARDS = 10
ROWS = 10
"""Rows in a row group of Parquet: as many bytes as a request is worth."""


@dataclass
class Bucket:
    """A bucket that is served. It may be sent to other processes."""

    url: str
    """Of the server, or of a slow line to it."""
    folder: Path
    """Where its objects are on this machine."""
    samples: int

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "data"}

    @functools.cached_property
    def data(self) -> np.ndarray:
        """The samples, random but for their numbers: [samples, SAMPLE] of uint8."""
        data = np.random.default_rng(0).integers(0, 256, (self.samples, SAMPLE), np.uint8)
        data[:, :8] = np.arange(self.samples, dtype=np.int64)[:, None].view(np.uint8)
        return data

    @property
    def names(self) -> list[str]:
        """Keys of the objects of one sample each, in the order of the samples."""
        return [f"objects/class-{number % 10}/{number:06d}.bin" for number in range(self.samples)]

    @property
    def shards(self) -> list[str]:
        """Keys of the tar shards."""
        return [f"tar/{shard:03d}.tar" for shard in range(SHARDS)]

    @property
    def tables(self) -> list[str]:
        """Keys of the files of Parquet."""
        return [f"parquet/{shard:03d}.parquet" for shard in range(SHARDS)]

    def fill(self) -> None:
        """Writes each sample as an object, in tar shards with their index, and in Parquet."""
        for key in (*self.names, *self.shards, *self.tables):
            (self.folder / key).parent.mkdir(parents=True, exist_ok=True)
        for key, sample in zip(self.names, self.data, strict=True):
            (self.folder / key).write_bytes(sample.tobytes())

        parts = np.array_split(np.arange(self.samples), SHARDS)
        for shard, table, numbers in zip(self.shards, self.tables, parts, strict=True):
            with tarfile.open(self.folder / shard, "w", format=tarfile.USTAR_FORMAT) as file:
                for number in numbers:
                    info = tarfile.TarInfo(f"{number:06d}.bin")
                    info.size = SAMPLE
                    file.addfile(info, io.BytesIO(self.data[number].tobytes()))
            keep_index(self.folder / shard)
            column = pa.array([self.data[number].tobytes() for number in numbers], pa.binary())
            path = self.folder / table
            pq.write_table(
                pa.table({"bin": column}), path, row_group_size=ROWS, compression="none", use_dictionary=False
            )

    def check(self, batches: Iterable[Iterable[Any]]) -> None:
        """Compares every byte of an epoch, whose samples may have any order."""
        seen = []
        for batch in batches:
            for sample in batch:
                # Tensors, arrays and bytes alike, without their copy.
                found = np.frombuffer(sample, np.uint8) if isinstance(sample, bytes) else np.asarray(sample)
                number = int(np.ascontiguousarray(found[:8]).view(np.int64)[0])
                same(found, self.data[number])
                seen.append(number)
        each_once(seen, self.samples)

    def open(self, form: str, **words: Any) -> Any:
        """Returns headrace's dataset of one of the forms, by URL."""
        options = {"endpoint": self.url, "skip_signature": True, "region": "us-east-1"}
        return headrace.open(f"s3://{BUCKET}/{form}", [COLUMNS[form]], decode=False, options=options, **words)

    def open_local(self, form: str) -> Any:
        """Returns the same from the files that the server has."""
        return headrace.open(str(self.folder / form), [COLUMNS[form]], decode=False)


def loader_of(dataset: Any, workers: int, seed: int | None = None) -> headrace.DataLoader[Any]:
    """Returns a loader that shuffles.

    Without a seed, the order of the next epoch is not known before it begins: a run of one epoch then fetches what it
    delivers, and nothing of an epoch that never comes.
    """
    words: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    return headrace.DataLoader(dataset, batch_size=BATCH, shuffle=True, seed=seed, **words)


def samples_of(loader: Iterable[Any]) -> Iterator[Any]:
    """Yields the samples of each of headrace's batches."""
    for batch in loader:
        yield next(iter(batch.values()))


@contextlib.contextmanager
def serving(samples: int) -> Iterator[Bucket]:
    """Serves a bucket of so many samples until the block ends."""
    program = nginx.find_nginx()
    if program is None:
        fail("nginx is not installed (Debian: nginx-light)")

    with tempfile.TemporaryDirectory() as temporary, nginx.running(Path(temporary), program) as server:
        bucket = Bucket(server.url, server.root / BUCKET, samples)
        bucket.fill()
        for form in COLUMNS:
            server.make_list(BUCKET, form)
        yield bucket
