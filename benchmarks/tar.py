"""Tar shards, undecoded: headrace, the webdataset package, and baseline loops that read the files, in turn."""

from __future__ import annotations

import functools
import io
import itertools
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from benchmarks.harness.machine import peer
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import exhaust, fail, rates_in_turn
from headrace.data.formats.tar.kept_index import keep_index

BATCH = 64


def make_shards(folder: Path, samples: int, *, indexed: bool) -> list[Path]:
    """Writes eight shards of so many samples of 60 to 140 KB with the library for tar files."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    files = [folder / f"{shard:03d}.tar" for shard in range(8)]
    for shard, path in enumerate(files):
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
            for sample in range(samples):
                name = f"{shard:03d}{sample:06d}"
                for ending, data in (("jpg", rng.bytes(int(rng.integers(60_000, 140_000)))), ("cls", b"7")):
                    info = tarfile.TarInfo(f"{name}.{ending}")
                    info.size = len(data)
                    file.addfile(info, io.BytesIO(data))
        if indexed:
            keep_index(path)
    return files


def read(files: list[Path]) -> dict[str, bytes]:
    """Returns the images in the shards by their keys, as the library for tar files reads them."""
    found = {}
    for file in files:
        with tarfile.open(file) as archive:
            for member in archive:
                if member.name.endswith("jpg"):
                    found[member.name[:-4]] = archive.extractfile(member).read()
    return found


def read_bare(files: list[Path], *buffers: bytearray) -> None:
    """Reads the files into these buffers in turn."""
    for file in files:
        turns = itertools.cycle(buffers)
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(next(turns)):
                pass


def tar(rounds: int = 5, share: float = 1.0) -> list[Table]:
    """Tar shards, undecoded: headrace, the webdataset package, and baseline loops that read the files, in turn.

    The samples are compared with what Python's library for tar files reads before anything is measured. The shards lie
    in the page cache. The baseline reads into one buffer of a megabyte, again and again: that stays in the cache of a
    core. The loop into batches reads as much at a time as a batch has, into two buffers in turn, as the memory of a
    loop that holds a batch until the next one is there. share: of the samples.
    """
    samples = int(500 * share)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = make_shards(folder / "shards", samples, indexed=False)
        make_shards(folder / "indexed", samples, indexed=True)
        size = sum(file.stat().st_size for file in files)
        expected = read(files)
        batch = size // (8 * samples) * BATCH
        rows = []
        for title, where, workers in (
            ("0 workers", "shards", 0),
            ("0 workers, index kept", "indexed", 0),
            ("2 workers", "shards", 2),
        ):
            loaders = loaders_of(folder / where, files, workers)
            check(loaders[OURS], expected)
            loops = {key: functools.partial(exhaust, loader) for key, loader in loaders.items()}
            if workers == 0:
                loops["baseline loop"] = functools.partial(read_bare, files, bytearray(1 << 20))
                loops["baseline loop into batches"] = functools.partial(
                    read_bare, files, bytearray(batch), bytearray(batch)
                )
            rows.append(Row(title, rates_in_turn(loops, size / 1e9, rounds)))
    title = f"tar shards, (key, bytes) undecoded, 8 x {size / 8e6:.0f} MB, batches of {BATCH}"
    checked = "The samples were compared with what Python's library for tar files reads."
    return [Table(title, "GB/s", rows, checked, base="webdataset")]


def loaders_of(folder: Path, files: list[Path], workers: int) -> dict[str, Any]:
    """Returns headrace's loader of the shards in a folder, and webdataset's if it is installed."""
    words: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    dataset = headrace.open(folder, columns=["__key__", "jpg"], decode=False).stream()
    loaders = {OURS: headrace.DataLoader(dataset, batch_size=BATCH, **words)}
    if webdataset := peer("webdataset"):
        theirs = webdataset.WebDataset([str(file) for file in files], shardshuffle=False)
        loaders["webdataset"] = webdataset.WebLoader(theirs, batch_size=None, **words)
    return loaders


def check(loader: Any, expected: dict[str, bytes]) -> None:
    """Ends the program unless an epoch has these samples."""
    found = {}
    for batch in loader:
        found |= {key: bytes(one) for key, one in zip(batch["__key__"], batch["jpg"], strict=True)}
    if found != expected:
        fail("the samples differ from those that the library for tar files reads")
