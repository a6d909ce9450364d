"""webdataset: shards without a state, in headrace's loader, go on in mid-epoch: what was delivered is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import webdataset
from resumed import SAMPLES, Noisy, asked, stream_with

from headrace import DataLoader


def write(folder: Path) -> str:
    """Writes the numbers of the samples into four shards. Returns the pattern of their names."""
    for shard in range(4):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as file:
            for number in range(shard, SAMPLES, 4):
                file.write({"__key__": f"{number:03}", "cls": number})
    return f"{folder}/{{0..3}}.tar"


def with_noise(row: tuple[int]) -> tuple[Any, int]:
    """Returns the sample of a row."""
    return Noisy()[row[0]]


if __name__ == "__main__":
    pattern = write(Path(asked()[0]))
    # Each worker reads all shards, of which the loader deals out the samples.
    shards = webdataset.WebDataset(pattern, shardshuffle=False, seed=3, nodesplitter=None, workersplitter=None)
    stream = shards.decode().to_tuple("cls").map(with_noise)
    stream_with(
        lambda size, workers: DataLoader(stream, batch_size=size, num_workers=workers, seed=3, shard="auto"),
        lambda batch: batch,
    )
