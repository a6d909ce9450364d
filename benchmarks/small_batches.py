"""Batches that cost next to nothing to make, so that the loader's own time shows: with and without workers.

    python benchmarks/small_batches.py [--rounds 5] [--share 1.0] [--only TEXT] [--json FILE]

Each row names its data and the number of workers, which are kept between epochs. torch, headrace and headrace with
`seed=` take turns, an epoch each. Before anything is measured, an epoch of each is compared: every sample comes once,
with its values. `--only` measures the rows whose titles have this text in them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset

import headrace
from rates import Loop, all_in_turn, write
from results import Row, Table, option, show
from results import write as write_results
from seeding import Scalars

CHECKED = "In an epoch of each loader, before anything was measured, every sample came once and was compared."
WINDOW = 2049


class Dicts(Scalars):
    """Sample i is a dictionary with i in it, as a number, an array and a nested dictionary."""

    def __getitem__(self, index: int) -> Any:
        return {"key": index, "pair": (np.full(4, index), 0.5), "more": {"length": index % 7, "name": "x"}}


class Images(Dataset[Any]):
    """Images of 28 x 28 in a memory-mapped array, as people write it."""

    def __init__(self, path: str) -> None:
        self.images = np.load(f"{path}/image.npy", mmap_mode="r")
        self.labels = np.load(f"{path}/label.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.from_numpy(self.images[index].copy()), "label": int(self.labels[index])}


class Tokens(Dataset[Any]):
    """Windows of a memory-mapped file, as people write it."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.tokens) // WINDOW

    def __getitem__(self, index: int) -> Any:
        start = index * WINDOW
        return {"data": torch.from_numpy(self.tokens[start : start + WINDOW].astype(np.int64))}


class Data(NamedTuple):
    """What a row measures: the data for torch and for headrace, the size of batches, and how to check one."""

    torchs: Any
    ours: Any
    batch_size: int
    keys: Callable[[Any], np.ndarray]
    """Returns which samples a batch has, after it has compared their values."""


def keys_of_scalars(batch: Any) -> np.ndarray:
    """Returns the samples of a batch of `Scalars`."""
    return np.asarray(batch)


def keys_of_dicts(batch: Any) -> np.ndarray:
    """Returns the samples of a batch of `Dicts`."""
    keys = batch["key"]
    same(batch["pair"][0], keys[:, None].expand(-1, 4))
    same(batch["more"]["length"], keys % 7)
    return np.asarray(keys)


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Raises unless both are the same."""
    if not torch.equal(one, other):
        raise SystemExit("a batch differs from its source")


def rows_of(folder: Path, share: float) -> Iterator[tuple[str, Data]]:
    """Yields what is measured."""
    count = int(256_000 * share)
    yield "scalars, batches of 64", Data(Scalars(count), Scalars(count), 64, keys_of_scalars)
    yield "dictionaries, batches of 8", Data(Dicts(count // 32), Dicts(count // 32), 8, keys_of_dicts)
    values = torch.arange(count // 8, dtype=torch.float32)
    pixels = torch.arange(784) / 784 + values[: count // 16, None]
    for title, data in (("TensorDataset of numbers", values), ("TensorDataset of 784 float32", pixels)):
        yield f"{title}, batches of 64", of_tensors(data)
    source = np.random.default_rng(0).integers(0, 255, (int(60_000 * share), 28, 28), np.uint8)
    path = write(folder, "images", "memmap", {"image": source, "label": np.arange(len(source))})
    images = torch.from_numpy(source)

    def keys_of_images(batch: Any) -> np.ndarray:
        same(batch["image"], images[batch["label"]])
        return np.asarray(batch["label"])

    yield "images 28x28, batches of 64", Data(Images(path), headrace.open(path), 64, keys_of_images)

    windows = np.random.default_rng(1).integers(0, 50_000, (int(20_000 * share), WINDOW), np.uint16)
    windows[:, 0] = np.arange(len(windows))
    np.save(folder / "tokens.npy", windows.reshape(-1))
    tokens = torch.from_numpy(windows.astype(np.int64))

    def keys_of_windows(batch: Any) -> np.ndarray:
        keys = batch["data"][:, 0]
        same(batch["data"], tokens[keys])
        return np.asarray(keys)

    ours = headrace.open(folder / "tokens.npy").windows(WINDOW).astype(torch.int64)
    yield "windows of 2,049 tokens, batches of 32", Data(Tokens(folder / "tokens.npy"), ours, 32, keys_of_windows)


def of_tensors(data: torch.Tensor) -> Data:
    """Returns a TensorDataset of values and keys."""
    dataset = TensorDataset(data, torch.arange(len(data)))

    def keys(batch: Any) -> np.ndarray:
        same(batch[0], data[batch[1]])
        return np.asarray(batch[1])

    return Data(dataset, dataset, 64, keys)


def contenders(data: Data, workers: int) -> dict[str, Any]:
    """Returns the loaders that are compared."""
    given = {"batch_size": data.batch_size, "shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    found: dict[str, Any] = {
        "torch": TorchLoader(data.torchs, **given),
        "headrace": headrace.DataLoader(data.ours, **given),
        "headrace, seed=": headrace.DataLoader(data.ours, seed=1, **given),
    }
    if workers:
        given["num_workers"] = 0
        given["persistent_workers"] = False
        found["headrace, no workers"] = headrace.DataLoader(data.ours, **given)
    return found


def check(loader: Any, data: Data) -> None:
    """Raises unless an epoch delivers every sample once."""
    keys = np.concatenate([data.keys(batch) for batch in loader])
    if not np.array_equal(np.sort(keys), np.arange(len(data.ours))):
        raise SystemExit("samples are missing, or came twice")


def measure(title: str, data: Data, workers: int, rounds: int) -> Row:
    """Returns the rates of all contenders, in samples/s."""
    loops: dict[str, Loop] = {}
    for name, loader in contenders(data, workers).items():
        check(loader, data)

        def loop(loader: Any = loader) -> float:
            delivered = 0
            for batch in loader:
                delivered += 1
                del batch
            if delivered != -(-len(data.ours) // data.batch_size):
                raise SystemExit("batches are missing")
            return 1.0

        loops[name] = loop
    return Row(title, all_in_turn(loops, len(data.ours), rounds))


def main() -> None:
    """Measures all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the data")
    parser.add_argument("--only", default="", help="rows whose titles have this text")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    option(parser)
    given = parser.parse_args()
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = [(title, data) for title, data in rows_of(Path(folder), given.share) if given.only in title]
        for workers in given.workers:
            rows = [measure(title, data, workers, given.rounds) for title, data in chosen]
            words = f"{workers} workers, kept between epochs" if workers else "no workers"
            tables.append(Table(f"small batches, shuffled, {words}", "samples/s", rows, CHECKED))
            show(tables[-1])
    write_results(given.json, tables)


if __name__ == "__main__":
    main()
