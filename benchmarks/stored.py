"""Stored images, tokens and paths: headrace.open with headrace.DataLoader, torch's loader, and baseline loops, in turn.

A baseline is NumPy that does nothing but the work, into memory that is used again, so that nobody could keep a batch.
Data lie in the page cache.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import headrace
from benchmarks.datasets import WINDOW, MappedImages, MappedTokens, random_images, write
from benchmarks.harness.machine import peer
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import Loop, each_once, exhaust, fail, rates_in_turn, same
from headrace.core.process.memory import tree_memory
from headrace.data.path_table import PathTable

EVERY = "In a first epoch every batch was compared with its source."

# -- images ------------------------------------------------------------------------------------------------------------


def mapped(rounds: int = 5, share: float = 1.0) -> list[Table]:
    """Mapped arrays of images, shuffled: headrace, torch over the same files, a baseline loop, and tensordict.

    In a first epoch every batch is compared with its source. share: of the data.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = random_images(int(60_000 * share))
        columns = {"image": source, "label": np.arange(len(source))}
        path = write(Path(folder), "images", "memmap", columns)
        labels = np.asarray(np.load(f"{path}/label.npy", mmap_mode="r"))
        flat = np.asarray(np.load(f"{path}/image.npy", mmap_mode="r")).reshape(len(labels), -1)
        tensordict = peer("tensordict")
        images = write(Path(folder), "images-td", "tensordict", columns) if tensordict else ""
        tables = []
        for size, as_float in ((512, False), (64, True)):
            stored = headrace.open(path)
            dataset = stored.astype(image=torch.float32) if as_float else stored
            ours = headrace.DataLoader(dataset, batch_size=size, shuffle=True)
            compare_images(ours, source)
            theirs = DataLoader(MappedImages(path, as_float=as_float), batch_size=size, shuffle=True)
            loops: dict[str, Loop] = {
                "baseline loop": functools.partial(take_images, flat, labels, size, as_float),
                OURS: functools.partial(exhaust, ours),
                "torch": functools.partial(exhaust, theirs),
            }
            if as_float and tensordict:
                loops["tensordict, batched reading"] = functools.partial(read_tensordict, tensordict, images, size)
            kind = "float32" if as_float else "uint8"
            title = f"images 28x28, shuffled, {kind}, batches of {size}, 0 workers"
            tables.append(Table(title, "samples/s", [Row("", rates_in_turn(loops, len(source), rounds))], EVERY))
    return tables


def take_images(images: np.ndarray, labels: np.ndarray, size: int, as_float: bool) -> None:
    """The baseline loop."""
    order = torch.randperm(len(labels)).numpy()
    pixels, classes = np.empty((size, 784), np.uint8), np.empty(size, np.int64)
    floats = np.empty((size, 784), np.float32)
    for start in range(0, len(labels) - size + 1, size):
        keys = order[start : start + size]
        np.take(images, keys, 0, pixels, "clip")
        np.take(labels, keys, 0, classes, "clip")
        if as_float:
            floats[...] = pixels


def read_tensordict(tensordict: Any, path: str, size: int) -> None:
    """Reads whole batches of a mapped TensorDict, as float32."""
    stored = tensordict.TensorDict.load_memmap(path)
    order = torch.randperm(len(stored))
    for start in range(0, len(stored), size):
        batch = stored[order[start : start + size]]
        batch["image"] = batch["image"].float()


def compare_images(loader: Any, source: np.ndarray) -> None:
    """Ends the program unless an epoch delivers every image of the source once; labels are their places."""
    seen = []
    for batch in loader:
        same(batch["image"], source[batch["label"]])
        seen.append(batch["label"])
    each_once(torch.cat(seen), len(source))


# -- tokens ------------------------------------------------------------------------------------------------------------

BATCH = 32


def tokens(rounds: int = 5, share: float = 1.0) -> list[Table]:
    """Windows of a mapped file of tokens, shuffled: headrace, torch over the same file, and a baseline loop.

    In a first epoch every window is compared with its source. share: of the data.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.npy"
        total = int(1_000_000_000 * share)
        write_tokens(path, total)
        source = np.asarray(np.load(path, mmap_mode="r"))
        headrace.open(path)
        began = time.perf_counter()
        whole = headrace.open(path)
        took = (time.perf_counter() - began) * 1e3
        note = f"Opening a memory-mapped file of {total * 2 / 1e9:.{0 if share == 1 else 2}f} GB: {took:.1f} ms."

        dataset = whole.windows(WINDOW).astype(torch.int64)
        order = np.random.default_rng(1).permutation(len(dataset))[:40_000]
        for number, got in enumerate(headrace.DataLoader(dataset, batch_size=BATCH, sampler=order.tolist())):
            keys = order[number * BATCH : number * BATCH + len(got["data"])]
            same(got["data"], np.stack([source[key * WINDOW : (key + 1) * WINDOW] for key in keys]))

        rows = []
        for workers, torchs in ((0, 1.0), (2, 0.25)):
            loops = {
                OURS: windows_of(headrace.DataLoader, dataset, order, workers, 1.0),
                "torch": windows_of(DataLoader, MappedTokens(path), order, workers, torchs),
            }
            if workers == 0:
                loops["baseline loop"] = functools.partial(copy_windows, source, order)
            rows.append(Row(f"{workers} workers", rates_in_turn(loops, len(order), rounds)))
    title = "tokens: windows of 2,049 from uint16, int64 out, shuffled, batches of 32"
    return [Table(title, "windows/s", rows, EVERY, notes=[note])]


def write_tokens(path: Path, total: int) -> None:
    """Writes so many tokens as one array."""
    file = np.lib.format.open_memmap(path, "w+", np.uint16, (total,))
    piece = np.random.default_rng(0).integers(0, 50_000, 1 << 24, dtype=np.uint16)
    for start in range(0, total, len(piece)):
        file[start : start + len(piece)] = piece[: total - start]
        file[start] = start // len(piece)


def windows_of(loader_class: Any, data: Any, order: np.ndarray, workers: int, part: float) -> Loop:
    """Returns a loop over a part of these windows."""
    chosen = torch.utils.data.Subset(data, order[: int(len(order) * part)].tolist())
    loader = loader_class(chosen, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)

    def loop() -> float:
        exhaust(loader)
        return part

    return loop


def copy_windows(source: np.ndarray, order: np.ndarray) -> None:
    """The baseline loop."""
    out = np.empty((BATCH, WINDOW), np.int64)
    for start in range(0, len(order), BATCH):
        for place, key in enumerate(order[start : start + BATCH].tolist()):
            out[place] = source[key * WINDOW : (key + 1) * WINDOW]


# -- paths -------------------------------------------------------------------------------------------------------------


class Lengths(Dataset[int]):
    """The length of each path."""

    def __init__(self, paths: Any) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


def paths(share: float = 1.0) -> list[Table]:
    """Memory of ten million paths: as a list of str, and as `headrace.compact` holds them, with four forked workers.

    The lengths of all paths that are read are compared. share: of the paths.
    """
    count, reads = int(10_000_000 * share), int(2_000_000 * share)

    def names() -> Iterator[str]:
        return (f"/datasets/images/train/n{i % 1000:08d}/{i:012d}.JPEG"[:50] for i in range(count))

    words: dict[str, Any] = {"batch_size": 1000, "num_workers": 4, "persistent_workers": True}
    kept = PathTable.from_paths(names())
    held = {"torch": [count * (sys.getsizeof(kept[0]) + 8) / 1e6], OURS: [kept.nbytes / 1e6]}
    ours = headrace.DataLoader(Lengths(kept), shuffle=True, seed=0, batches_per_epoch=reads // 1000, **words)
    grown = {OURS: megabytes_of(ours)}
    del ours, kept

    listed = Lengths(list(names()))
    sampler = torch.utils.data.RandomSampler(listed, replacement=True, num_samples=reads)
    grown["torch"] = megabytes_of(DataLoader(listed, sampler=sampler, **words))
    rows = [Row("the paths alone", held)]
    for place, when in enumerate(("to begin with", f"after {reads:,} reads", "after a second epoch")):
        figures = {key: [one[place]] for key, one in grown.items()}
        rows.append(Row(f"4 forked workers and their parent, {when}", figures))
    title = f"{count:,} paths of 50 characters: as a list of str, and as headrace.compact holds them"
    checked = "Lengths of all paths that were read were summed up and compared."
    return [Table(title, "MB", rows, checked, better="less")]


def megabytes_of(loader: Any) -> list[float]:
    """Returns the memory of all processes at the first batch, after an epoch and after a second one, in MB."""
    iterator = iter(loader)
    next(iterator)
    sizes = [tree_memory(os.getpid()) / 1e6]
    for epoch in (iterator, loader):
        if any(int(batch.sum()) != 50 * len(batch) for batch in epoch):
            fail("a path is of another length")
        sizes.append(tree_memory(os.getpid()) / 1e6)
    return sizes
