"""Data in a bucket of this machine's nginx, without latency: headrace, a bare loop of obstore, and peers, in turn.

    python benchmarks/remote.py [--samples 1000] [--rounds 5] [--json FILE]

1,000 samples of 100 KB, shuffled: as objects of their own, in tar shards, and in Parquet. The bare loop asks for one
sample after the other, of Parquet for one row group after the other. In a first round, which is not measured, every
byte of every contender is compared with its source.

    pip install s3torchconnector s3fs webdataset      # the peers; those that are not installed are left out
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import bucket as buckets
from bucket import SAMPLE, Bucket
from rates import all_in_turn
from results import OURS, Row, Table, option, show, write

Batches = Iterator[Sequence[Any]]
Start = Callable[[], Batches]
"""Makes a loader anew and reads an epoch."""

CHECKED = "Before the rounds, every byte of each contender's samples was compared with its source."
PEERS = {
    "objects": ("s3torchconnector", "s3fs"),
    "tar": ("webdataset",),
    "parquet": (),
}
TITLES = {"objects": "one object a sample", "tar": "tar shards", "parquet": "Parquet"}
WORKERS = (0, 2)
BARE = "obstore, bare"


def bare(bucket: Bucket, form: str) -> Batches:
    """Reads with obstore alone: the ranges that hold the samples, one after the other."""
    import obstore

    store = buckets.obstore_store(bucket.url)
    ranges = ranges_of(bucket, form)

    random.shuffle(ranges)
    for key, start, length in ranges:
        got = obstore.get_range(store, key, start=start, length=length)
        if form == "parquet":
            # A row group, whose rows are not told apart.
            yield [got] * buckets.ROWS
        else:
            yield [got]


def bare_decoded(bucket: Bucket) -> Batches:
    """Reads Parquet with obstore and pyarrow alone, one row group after the other, each of them decoded."""
    import pyarrow.parquet as pq
    from obstore.fsspec import FsspecStore

    config = {
        "endpoint": bucket.url,
        "region": "us-east-1",
        "skip_signature": True,
        "virtual_hosted_style_request": False,
    }
    files = FsspecStore("s3", config=config, client_options={"allow_http": True})
    groups = []
    for key in bucket.tables:
        file = pq.ParquetFile(files.open(f"{buckets.BUCKET}/{key}"), pre_buffer=True)
        groups += [(file, number) for number in range(file.metadata.num_row_groups)]
    random.shuffle(groups)
    for file, number in groups:
        yield file.read_row_group(number)["bin"]


def ranges_of(bucket: Bucket, form: str) -> list[tuple[str, int, int]]:
    """Returns (key, begin, length) of all samples; of Parquet those of the row groups."""
    if form == "objects":
        return [(key, 0, SAMPLE) for key in bucket.names]

    found = []
    if form == "tar":
        import tarfile

        for key in bucket.shards:
            with tarfile.open(bucket.folder / key) as file:
                found += [(key, member.offset_data, member.size) for member in file]
        return found

    import pyarrow.parquet as pq

    for key in bucket.tables:
        metadata = pq.read_metadata(bucket.folder / key)
        for number in range(metadata.num_row_groups):
            column = metadata.row_group(number).column(0)
            found.append((key, column.data_page_offset, column.total_compressed_size))
    return found


def contenders_of(bucket: Bucket, form: str) -> tuple[dict[str, Start], dict[str, str]]:
    """Returns the contenders, and why others are missing."""
    dataset = bucket.open(form, options=bucket.options)
    found: dict[str, Start] = {BARE: functools.partial(bare, bucket, form)}
    missing = {}
    if form == "parquet":
        found["obstore and pyarrow, bare"] = functools.partial(bare_decoded, bucket)
    for workers in WORKERS:
        found[named(OURS, workers)] = functools.partial(ours, bucket, form, dataset, workers)
    for name in PEERS[form]:
        for workers in WORKERS:
            if why := buckets.missing(name):
                missing[named(name, workers)] = why
                continue
            peer = getattr(buckets, name)
            found[named(name, workers)] = functools.partial(theirs, peer, bucket, workers)
    return found, missing


def ours(bucket: Bucket, form: str, dataset: Any, workers: int) -> Batches:
    """Yields the batches of headrace's loader, and sees that it fetched everything meanwhile."""
    if form == "parquet":
        # Its readers keep row groups: those of another round would come from memory.
        dataset = bucket.open(form, options=bucket.options)
    loader = buckets.loader(dataset, workers)
    for batch in loader:
        yield next(iter(batch.values()))

    reads = loader.stats.remote
    if reads.first_bytes + reads.again_bytes < len(bucket.data) * SAMPLE:
        raise SystemExit(f"{reads.bytes:,} bytes were fetched: some came from elsewhere")


def theirs(peer: buckets.Peer, bucket: Bucket, workers: int) -> Batches:
    """Yields the batches of a peer."""
    yield from peer(bucket, workers)


def named(name: str, workers: int) -> str:
    if workers:
        return f"{name}, {workers} workers"
    return name


def measure(bucket: Bucket, form: str, rounds: int) -> Row:
    """Compares the contenders' samples, then takes their rates in turn."""
    contenders, missing = contenders_of(bucket, form)
    for name, start in contenders.items():
        # What the bare loops bring of Parquet is no sample yet.
        if not (name.endswith("bare") and form == "parquet"):
            bucket.check(start())

    def counted(start: Start) -> Callable[[], None]:
        def run() -> None:
            count = sum(len(batch) for batch in start())
            if count != len(bucket.data):
                raise SystemExit(f"{count} of {len(bucket.data)} samples came")

        return run

    loops = {name: counted(start) for name, start in contenders.items()}
    return Row(TITLES[form], all_in_turn(loops, len(bucket.data), rounds), missing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forms", nargs="+", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--folder", type=Path, help="where the objects are made; otherwise a temporary folder")
    option(parser)
    given = parser.parse_args()
    with buckets.serving(given.samples, given.folder) as bucket:
        buckets.set_environment(bucket.url)
        rows = [measure(bucket, form, given.rounds) for form in given.forms]
    title = f"{given.samples:,} samples of 100 KB from nginx on the same machine, shuffled"
    table = Table(title, "samples/s", rows, CHECKED, base=BARE)
    show(table)
    write(given.json, [table], peers=["obstore", "s3torchconnector", "s3fs", "webdataset"])


if __name__ == "__main__":
    main()
