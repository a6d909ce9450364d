"""Tar shards, undecoded: headrace, the webdataset package, and a bare loop that reads the files, in turn, in one run.

    python benchmarks/shards.py [--rounds 5] [--share 1] [--json FILE]

The samples are compared with what Python's library for tar files reads before anything is measured. Figures are
medians; the shards lie in the page cache. The bare loop reads into one buffer of a megabyte, again and again: that
stays in the cache of a core. The loop into batches reads as much at a time as a batch has, into two buffers in turn, as
the memory of a loop that holds a batch until the next one is there.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import headrace
from headrace.data.formats.tar.kept_index import keep_index
from rates import Loop, all_in_turn, exhaust, show_rates
from results import Row, Table, option, peer, write

CHECKED = "The samples were compared with what Python's library for tar files reads."


def make_shards(folder: Path, samples: int) -> list[Path]:
    """Writes eight shards of so many samples of 60 to 140 KB with the library for tar files; no index beside them."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for shard in range(8):
        with tarfile.open(folder / f"{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT) as file:
            for sample in range(samples):
                name = f"{shard:03d}{sample:06d}"
                for ending, data in (("jpg", rng.bytes(int(rng.integers(60_000, 140_000)))), ("cls", b"7")):
                    info = tarfile.TarInfo(f"{name}.{ending}")
                    info.size = len(data)
                    file.addfile(info, io.BytesIO(data))
    return sorted(folder.glob("*.tar"))


def read(files: list[Path]) -> dict[str, bytes]:
    """Returns the images in the shards by their keys, as the library for tar files reads them."""
    found = {}
    for file in files:
        with tarfile.open(file) as archive:
            for member in archive:
                if member.name.endswith("jpg"):
                    found[member.name[:-4]] = archive.extractfile(member).read()
    return found


def shards(folder: Path, rounds: int, share: float) -> Table:
    samples = int(500 * share)
    files = make_shards(folder / "shards", samples)
    indexed = make_shards(folder / "indexed", samples)
    for file in indexed:
        keep_index(file)
    size = sum(file.stat().st_size for file in files) / 1e9
    expected = read(files)

    def ours(where: Path, workers: int) -> headrace.DataLoader:
        dataset = headrace.open(where, columns=["__key__", "jpg"], decode=False).stream()
        return headrace.DataLoader(dataset, batch_size=64, num_workers=workers, persistent_workers=workers > 0)

    for where, workers in ((folder / "shards", 0), (folder / "indexed", 2)):
        found = {
            key: bytes(one) for got in ours(where, workers) for key, one in zip(got["__key__"], got["jpg"], strict=True)
        }
        if found != expected:
            raise SystemExit("the samples differ from those that the library for tar files reads")
    expected.clear()

    def bare(*buffers: bytearray) -> None:
        for file in files:
            turns = itertools.cycle(buffers)
            with file.open("rb", buffering=0) as stream:
                while stream.readinto(next(turns)):
                    pass

    batch = int(size * 1e9 / (8 * samples) * 64)

    webdataset = peer("webdataset")

    def theirs(workers: int) -> Any:
        dataset = webdataset.WebDataset([str(file) for file in files], shardshuffle=False)
        return webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)

    loaders = {
        "headrace, 0 workers": ours(folder / "shards", 0),
        "headrace, 0 workers, index kept": ours(folder / "indexed", 0),
        "headrace, 2 workers": ours(folder / "shards", 2),
    }
    if webdataset:
        loaders |= {f"webdataset, {workers} workers": theirs(workers) for workers in (0, 2)}
    loops: dict[str, Loop] = {
        "bare loop": functools.partial(bare, bytearray(1 << 20)),
        "bare loop into batches": functools.partial(bare, bytearray(batch), bytearray(batch)),
    }
    loops |= {name: lambda loader=loader: exhaust(loader) for name, loader in loaders.items()}
    pairs = [(name, "webdataset, 0 workers") for name in loaders if "headrace, 0" in name and webdataset]
    for loop in ("bare loop", "bare loop into batches"):
        pairs += [(name, loop) for name in loaders if "headrace, 0" in name]
    pairs += [("headrace, 2 workers", "webdataset, 2 workers")] if webdataset else []
    rates = all_in_turn(loops, size, rounds)
    title = f"tar shards, (key, bytes) undecoded, 8 x {size * 1e3 / 8:.0f} MB, batches of 64"
    show_rates(title, "GB/s", rates, pairs)
    return Table(title, "GB/s", rows_of(rates), CHECKED, base="webdataset")


def rows_of(rates: dict[str, list[float]]) -> list[Row]:
    """Returns lines for 0 workers, without and with an index kept, and for 2 workers."""
    rows = []
    for name, workers in (("0 workers", 0), ("0 workers, index kept", 0), ("2 workers", 2)):
        figures = {
            "webdataset": rates.get(f"webdataset, {workers} workers"),
            "headrace": rates[f"headrace, {name}"],
            "bare loop": rates["bare loop"] if workers == 0 else None,
            "bare loop into batches": rates["bare loop into batches"] if workers == 0 else None,
        }
        rows.append(Row(name, {key: values for key, values in figures.items() if values}))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the samples, to try it with less")
    option(parser)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = shards(Path(folder), given.rounds, given.share)
    write(given.json, [table], ["webdataset"])


if __name__ == "__main__":
    main()
