"""All benchmarks by their names: what each measures, with which function, and how small it can be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.harness.table import Table


class Benchmark(NamedTuple):
    """One command, and one section of docs/benchmarks/figures.md if it has markers there."""

    place: str
    """`module:function` in this package. The function's parameters are the options of the command."""
    line: str
    """What it measures."""
    quick: str
    """Options with which it takes seconds."""
    peers: str = ""
    """Packages whose versions are noted with the figures."""

    @property
    def function(self) -> Callable[..., list[Table]]:
        """What measures."""
        module, _, name = self.place.partition(":")
        found: Callable[..., list[Table]] = getattr(importlib.import_module(f"benchmarks.{module}"), name)
        return found


BENCHMARKS = {
    "transport": Benchmark("transport:transport", "ready samples on their way to the loop", "--batches 2 --rounds 2"),
    "forms": Benchmark(
        "forms:forms", "five forms of two datasets", "--epochs 1 --rounds 2 --share 0.01", "tensordict pillow"
    ),
    "ranks": Benchmark(
        "ranks:ranks", "the same forms on several ranks and nodes",
        "--rounds 1 --share 0.02 --layouts '1 rank' '2 nodes, 1 rank each'", "tensordict pillow",
    ),
    "trajectories": Benchmark(
        "trajectories:trajectories", "steps made once or at each access: rates, memory, cuts",
        "--trajectories 2000 --cut-trajectories 1500 --rounds 2 --batches 4",
    ),
    "images": Benchmark(
        "images:images", "JPEGs to random crops, by two workers", "--images 128 --rounds 2",
        "webdataset pillow simplejpeg opencv-python-headless",
    ),
    "images-one-core": Benchmark(
        "images:one_core", "pipelines for images alone, on one core", "--images 6 --rounds 1",
        "pillow simplejpeg opencv-python-headless",
    ),
    "demo": Benchmark("demo:demo", "the scenes of `headrace demo` that have figures", "--scenes stored", "torchdata"),
    "mapped": Benchmark("stored:mapped", "mapped arrays of images", "--rounds 2 --share 0.05", "tensordict"),
    "tokens": Benchmark("stored:tokens", "windows of a file of tokens", "--rounds 2 --share 0.01"),
    "tar": Benchmark("tar:tar", "tar shards, undecoded", "--rounds 2 --share 0.02", "webdataset"),
    "table": Benchmark("table:table", "rows of Arrow and Parquet", "--rounds 2 --share 0.01", "pyarrow"),
    "start": Benchmark(
        "start:start", "the start of eight workers by spawn, and memory", "--gigabytes 0.02 --workers 1 --rounds 1"
    ),
    "paths": Benchmark("stored:paths", "memory of ten million paths", "--share 0.01"),
    "formats": Benchmark(
        "formats:formats", "the table of `headrace bench`", "--share 0.02 --seconds 0.05",
        "pyarrow tensordict h5py lmdb datasets",
    ),
    "order": Benchmark("start:order", "a shuffle of ever larger datasets", "--sizes 1e5 1e10 --rounds 1"),
    "packing": Benchmark(
        "packing:packing", "documents packed to a budget", "--documents 3000 --rounds 1", "trl grain datasets"
    ),
    "small-batches": Benchmark(
        "small_batches:small_batches", "batches that cost next to nothing", "--rounds 1 --share 0.05"
    ),
    "stragglers": Benchmark("stragglers:stragglers", "a few samples take much longer", "--rounds 1 --share 0.1"),
    "bucket": Benchmark(
        "remote:bucket", "a bucket without latency", "--samples 100 --rounds 1",
        "obstore s3torchconnector s3fs webdataset",
    ),
    "line": Benchmark(
        "remote_line:line", "a bucket behind a slow line", "--samples 200 --rounds 1 --rate 1e10",
        "obstore s3torchconnector litdata mosaicml-streaming webdataset",
    ),
    "cache": Benchmark("cache:cache", "the cache of a node", "--samples 100 --rounds 1", "obstore"),
    "databases": Benchmark(
        "databases:databases", "tables of PostgreSQL and SQLite", "--rows 4096 --rounds 1 --places sqlite",
        "adbc-driver-postgresql adbc-driver-sqlite psycopg",
    ),
    "kafka": Benchmark(
        "kafka:kafka", "a topic of Kafka: rates, and resumes", "--messages 20000 --rounds 1 --parts rates",
        "confluent-kafka",
    ),
    "journal": Benchmark(
        "journal:journal", "queues and sockets with a journal on disk",
        "--parts tcp disk --messages 2000 --rounds 1", "pika",
    ),
    "journal-full": Benchmark("journal:full", "a journal that is full", "--messages 20000 --still 0.5"),
    "remote-workers": Benchmark(
        "remote_workers:remote_workers", "batches of a Ray cluster", "--batches 2 --rounds 1 --workers 1", "ray"
    ),
    "remote-decoding": Benchmark(
        "remote_decoding:remote_decoding", "photos decoded by several machines", "--photos 128 --rounds 1 --step 0"
    ),
    "faults": Benchmark("transport:faults", "what watching over workers costs", "--batches 2 --rounds 2"),
    "recording": Benchmark("transport:recording", "what recording costs", "--batches 2 --rounds 2"),
    "bottlenecks": Benchmark(
        "bottlenecks:bottlenecks", "planted bottlenecks: predicted and true gains", "--rounds 1 --only slow-read"
    ),
    "bottlenecks-network": Benchmark(
        "bottlenecks_network:bottlenecks_network", "the same behind a slow line", "--rounds 1 --only cache-too-small"
    ),
    "auto-backend": Benchmark(
        "auto_backend:auto_backend", 'what backend="auto" chooses',
        "--rounds 1 --starts 1 --share 0.02 --only scalars",
    ),
    "auto": Benchmark(
        "auto:auto", 'num_workers="auto" beside the best fixed number',
        "--seconds 0.1 --cold 1 --loops 'in memory' hungry",
    ),
}  # fmt: skip
"""In the order in which `page --all` measures them."""
