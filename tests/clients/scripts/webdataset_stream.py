"""webdataset: shards of tar files, shuffled and split over workers."""

import io
import random
import tarfile
import tempfile
from pathlib import Path

import webdataset
from reporting import DataLoader, delivered, in_the_loop, ways_of_workers


def write(folder: str) -> str:
    """Writes forty numbers into four shards. Returns the pattern of their names."""
    for shard in range(4):
        with tarfile.open(Path(folder) / f"{shard}.tar", "w") as file:
            for number in range(10 * shard, 10 * shard + 10):
                entry = tarfile.TarInfo(f"{number:03}.cls")
                text = str(number).encode()
                entry.size = len(text)
                file.addfile(entry, io.BytesIO(text))
    return f"{folder}/{{0..3}}.tar"


def main() -> None:
    """Epochs with each kind of workers."""
    with tempfile.TemporaryDirectory() as folder:
        pattern = write(folder)
        for words, epochs in ways_of_workers():
            random.seed(5)
            stream = webdataset.WebDataset(pattern, shardshuffle=False, seed=3).shuffle(8, rng=random.Random(2))
            loader = DataLoader(stream.decode().to_tuple("cls"), batch_size=4, **words)
            in_the_loop(loader)
            for _ in range(epochs):
                for (numbers,) in loader:
                    delivered(numbers)


if __name__ == "__main__":
    main()
