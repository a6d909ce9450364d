"""Data in a bucket of this machine's nginx, without latency: headrace, baselines of obstore, and peers, in turn."""

from __future__ import annotations

import functools
import random
import tarfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow.parquet as pq

from benchmarks import peers
from benchmarks.buckets import BUCKET, ROWS, SAMPLE, Bucket, loader_of, samples_of, serving
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import Loop, fail, rates_in_turn

Start = Callable[[], Iterable[Sequence[Any]]]
"""Makes a loader anew and reads an epoch."""

FORMS = {
    "objects": ("one object a sample", ("s3torchconnector", "s3fs")),
    "tar": ("tar shards", ("webdataset",)),
    "parquet": ("Parquet", ()),
}
"""By form: the title of its row, and the peers that read it."""

BARE = "obstore, bare"
STORE: dict[str, Any] = {"region": "us-east-1", "skip_signature": True, "virtual_hosted_style_request": False}
CLIENT = {"allow_http": True}


def ranges_of(bucket: Bucket, form: str) -> list[tuple[str, int, int]]:
    """Returns (key, begin, length) of all samples; of Parquet those of the row groups."""
    if form == "objects":
        return [(key, 0, SAMPLE) for key in bucket.names]

    found = []
    for key in bucket.shards if form == "tar" else ():
        with tarfile.open(bucket.folder / key) as file:
            found += [(key, member.offset_data, member.size) for member in file]
    for key in bucket.tables if form == "parquet" else ():
        metadata = pq.read_metadata(bucket.folder / key)
        for number in range(metadata.num_row_groups):
            column = metadata.row_group(number).column(0)
            found.append((key, column.data_page_offset, column.total_compressed_size))
    return found


def bare(bucket: Bucket, form: str) -> Iterable[Sequence[Any]]:
    """Reads with obstore alone: the ranges that hold the samples, one after the other."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(BUCKET, endpoint=bucket.url, client_options=CLIENT, **STORE)
    ranges = ranges_of(bucket, form)
    random.shuffle(ranges)
    for key, start, length in ranges:
        got = obstore.get_range(store, key, start=start, length=length)
        yield [got] * (ROWS if form == "parquet" else 1)  # the rows of a row group are not told apart


def bare_decoded(bucket: Bucket) -> Iterable[Sequence[Any]]:
    """Reads Parquet with obstore and pyarrow alone, one row group after the other, each of them decoded."""
    from obstore.fsspec import FsspecStore

    files = FsspecStore("s3", config={"endpoint": bucket.url, **STORE}, client_options=CLIENT)
    groups = []
    for key in bucket.tables:
        file = pq.ParquetFile(files.open(f"{BUCKET}/{key}"), pre_buffer=True)
        groups += [(file, number) for number in range(file.metadata.num_row_groups)]
    random.shuffle(groups)
    for file, number in groups:
        yield file.read_row_group(number)["bin"]


def ours(bucket: Bucket, form: str, dataset: Any, workers: int) -> Iterable[Sequence[Any]]:
    """Yields the batches of headrace's loader, and sees that it fetched everything meanwhile."""
    if form == "parquet":
        # Its readers keep row groups: those of another round would come from memory.
        dataset = bucket.open(form)
    loader = loader_of(dataset, workers)
    yield from samples_of(loader)

    reads = loader.stats.remote
    if reads.first_bytes + reads.again_bytes < bucket.samples * SAMPLE:
        fail(f"{reads.bytes:,} bytes were fetched: some came from elsewhere")


def contenders_of(bucket: Bucket, form: str) -> tuple[dict[str, Start], dict[str, str]]:
    """Returns the contenders, and why others are missing."""
    dataset = bucket.open(form)
    found: dict[str, Start] = {BARE: functools.partial(bare, bucket, form)}
    if form == "parquet":
        found["obstore and pyarrow, bare"] = functools.partial(bare_decoded, bucket)
    missing = {}
    for name in (OURS, *FORMS[form][1]):
        for workers in (0, 2):
            title = f"{name}, {workers} workers" if workers else name
            if name == OURS:
                found[title] = functools.partial(ours, bucket, form, dataset, workers)
            elif why := peers.missing(name):
                missing[title] = why
            else:
                found[title] = functools.partial(peers.PEERS[name], bucket, workers)
    return found, missing


def measure(bucket: Bucket, form: str, rounds: int) -> Row:
    """Compares the contenders' samples, then takes their rates in turn."""
    contenders, missing = contenders_of(bucket, form)
    loops: dict[str, Loop] = {}
    for name, start in contenders.items():
        # What the baseline loops bring of Parquet is no sample yet.
        if not (name.endswith("bare") and form == "parquet"):
            bucket.check(start())

        def count(start: Start = start) -> None:
            if (number := sum(len(batch) for batch in start())) != bucket.samples:
                fail(f"{number} of {bucket.samples} samples came")

        loops[name] = count
    return Row(FORMS[form][0], rates_in_turn(loops, bucket.samples, rounds), missing)


def bucket(samples: int = 1000, rounds: int = 5, forms: tuple[str, ...] = tuple(FORMS)) -> list[Table]:
    """Data in a bucket of this machine's nginx, without latency: headrace, baselines of obstore, and peers, in turn.

    Samples of 100 KB, shuffled: as objects of their own, in tar shards, and in Parquet. The baseline loop asks for one
    sample after the other, of Parquet for one row group after the other. In a first round, which is not measured, every
    byte of every contender is compared with its source. Peers that are not installed are left out:

    pip install s3torchconnector s3fs webdataset
    """
    with serving(samples) as served:
        peers.set_environment(served.url)
        rows = [measure(served, form, rounds) for form in forms]
    title = f"{samples:,} samples of 100 KB from nginx on the same machine, shuffled"
    checked = "Before the rounds, every byte of each contender's samples was compared with its source."
    return [Table(title, "samples/s", rows, checked, base=BARE)]
