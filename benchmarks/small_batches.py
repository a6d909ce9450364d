"""Batches that cost next to nothing to make, so that the loader's own time shows: with and without workers."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

import headrace
from benchmarks.datasets import WINDOW, MappedImages, MappedTokens, Numbers, random_images, write
from benchmarks.harness.table import OURS, Row, Table
from benchmarks.harness.turns import count_batches, each_once, rates_in_turn, same

CHECKED = "In an epoch of each loader, before anything was measured, every sample came once and was compared."


class Drawing(Numbers):
    """Sample i is i, behind a random number that is thrown away, so that `seed=` has to seed."""

    def __getitem__(self, index: int) -> Any:
        random.random()
        return index


class Dicts(Numbers):
    """Sample i is a dictionary with i in it, as a number, an array and a nested dictionary."""

    def __getitem__(self, index: int) -> Any:
        return {"key": index, "pair": (np.full(4, index), 0.5), "more": {"length": index % 7, "name": "x"}}


class Data(NamedTuple):
    """What a row measures: the data for torch and for headrace, the size of batches, and how to check one."""

    torchs: Any
    ours: Any
    batch_size: int
    keys: Callable[[Any], Any]
    """Returns which samples a batch has, after it has compared their values."""


def keys_of_dicts(batch: Any) -> Any:
    """Returns the samples of a batch of `Dicts`."""
    keys = batch["key"]
    same(batch["pair"][0], keys[:, None].expand(-1, 4))
    same(batch["more"]["length"], keys % 7)
    return keys


def rows_of(folder: Path, share: float) -> Iterator[tuple[str, Data]]:
    """Yields what is measured."""
    count = int(256_000 * share)
    for title, kind in (("scalars", Numbers), ("scalars that draw a number", Drawing)):
        yield f"{title}, batches of 64", Data(kind(count), kind(count), 64, np.asarray)
    yield "dictionaries, batches of 8", Data(Dicts(count // 32), Dicts(count // 32), 8, keys_of_dicts)
    values = torch.arange(count // 8, dtype=torch.float32)
    pixels = torch.arange(784) / 784 + values[: count // 16, None]
    for title, data in (("TensorDataset of numbers", values), ("TensorDataset of 784 float32", pixels)):
        yield f"{title}, batches of 64", of_tensors(data)

    source = random_images(int(60_000 * share))
    path = write(folder, "images", "memmap", {"image": source, "label": np.arange(len(source))})

    def keys_of_images(batch: Any) -> Any:
        same(batch["image"], source[batch["label"]])
        return batch["label"]

    yield "images 28x28, batches of 64", Data(MappedImages(path), headrace.open(path), 64, keys_of_images)

    windows = np.random.default_rng(1).integers(0, 50_000, (int(20_000 * share), WINDOW), np.uint16)
    windows[:, 0] = np.arange(len(windows))
    np.save(folder / "tokens.npy", windows.reshape(-1))

    def keys_of_windows(batch: Any) -> Any:
        keys = batch["data"][:, 0]
        same(batch["data"], windows[keys])
        return keys

    ours = headrace.open(folder / "tokens.npy").windows(WINDOW).astype(torch.int64)
    yield "windows of 2,049 tokens, batches of 32", Data(MappedTokens(folder / "tokens.npy"), ours, 32, keys_of_windows)


def of_tensors(data: torch.Tensor) -> Data:
    """Returns a TensorDataset of values and keys."""
    dataset = TensorDataset(data, torch.arange(len(data)))

    def keys(batch: Any) -> Any:
        same(batch[0], data[batch[1]])
        return batch[1]

    return Data(dataset, dataset, 64, keys)


def contenders(data: Data, workers: int) -> dict[str, Any]:
    """Returns the loaders that are compared, after an epoch of each that was checked."""
    given: dict[str, Any] = {"batch_size": data.batch_size, "shuffle": True}
    workers_too = {**given, "num_workers": workers, "persistent_workers": workers > 0}
    found: dict[str, Any] = {
        "torch": TorchLoader(data.torchs, **workers_too),
        OURS: headrace.DataLoader(data.ours, **workers_too),
        "headrace, seed=": headrace.DataLoader(data.ours, seed=1, **workers_too),
    }
    if workers:
        found["headrace, no workers"] = headrace.DataLoader(data.ours, **given)
    for loader in found.values():
        each_once(np.concatenate([data.keys(batch) for batch in loader]), len(data.ours))
    return found


def small_batches(
    rounds: int = 5, share: float = 1.0, only: str = "", workers: tuple[int, ...] = (0, 2)
) -> list[Table]:
    """Batches that cost next to nothing to make, so that the loader's own time shows.

    torch, headrace and headrace with `seed=` take turns, an epoch each; workers are kept between epochs. Before
    anything is measured, an epoch of each is compared: every sample comes once, with its values. share: of the data.
    only: the rows whose titles have this text in them.
    """
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = [(title, data) for title, data in rows_of(Path(folder), share) if only in title]
        for number in workers:
            rows = []
            for title, data in chosen:
                loaders = contenders(data, number)
                loops = {name: functools.partial(count_batches, loader) for name, loader in loaders.items()}
                rows.append(Row(title, rates_in_turn(loops, len(data.ours), rounds)))
            words = f"{number} workers, kept between epochs" if number else "no workers"
            tables.append(Table(f"small batches, shuffled, {words}", "samples/s", rows, CHECKED))
    return tables
