"""A loader that somebody drops, in the middle or at the end, keeps nothing in memory of what it has read ahead."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.fetcher import RangeFetcher
from headrace.storage.fetching.io_client import IO_PROCESS
from tests.data.by_url.conftest import Twice

Make = Callable[..., Twice]


def comes_down_to(expected: int) -> bool:
    """Waits until this process holds so many bytes: those that are on their way come first."""
    gc.collect()
    fetcher = endpoint()
    assert isinstance(fetcher, RangeFetcher)
    waiting = threading.Event()
    for _ in range(500):
        # Drops what was abandoned while a thread held the lock.
        fetcher.passed(0, 0)
        if fetcher.held == expected:
            return True
        waiting.wait(0.01)
    return False


@pytest.mark.parametrize("whole_epoch", [False, True])
@pytest.mark.parametrize("as_stream", [False, True])
def test_a_dropped_loader_leaves_nothing_in_memory(twice: Make, as_stream: bool, whole_epoch: bool) -> None:
    dataset: Any = twice("parquet", "s3").remote
    words: dict[str, Any] = {"shuffle": True}
    if as_stream:
        dataset = dataset.stream()
        words = {}
    assert comes_down_to(0)
    loader = headrace.DataLoader(dataset, batch_size=8, seed=3, **words)
    batches = iter(loader)
    next(batches)
    if whole_epoch:
        for _ in batches:
            pass
    del batches, loader
    assert comes_down_to(0)


def test_a_loop_that_is_left_keeps_nothing_in_memory(twice: Make) -> None:
    """The loader itself lives on: somebody has looked at one batch of it."""
    loader = headrace.DataLoader(twice("parquet", "s3").remote, batch_size=8, seed=3, shuffle=True)
    for _ in range(2):
        for _ in loader:
            break
        assert comes_down_to(0)
    assert len(list(loader)) == len(loader)


def descriptors_below(pid: int, folder: Path) -> int:
    """Returns how many files and folders below a folder a process has open."""
    found = 0
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            found += str(Path(entry.path).readlink()).startswith(str(folder))
        except FileNotFoundError:
            continue  # of the listing itself, or closed meanwhile
    return found


def closes(pid: int, folder: Path, expected: int) -> bool:
    """Waits until a process has at most so many open: what is on its way comes first."""
    waiting = threading.Event()
    for _ in range(1000):
        if descriptors_below(pid, folder) <= expected:
            return True
        waiting.wait(0.01)
    return False


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["pt", "hdf5"])
def test_a_dropped_dataset_closes_its_cache(twice: Make, tmp_path: Path, workers: int, name: str) -> None:
    """Somebody opens data in a cell of a notebook, again and again."""
    cache = tmp_path / "cache"
    io_process = IO_PROCESS.get()  # which lasts as long as this test

    def read_once() -> None:
        dataset = twice(name, "s3", cache_dir=cache).remote
        loader = headrace.DataLoader(dataset, batch_size=8, seed=3, shuffle=True, num_workers=workers)
        assert len(list(loader)) == len(loader)
        if workers and name == "pt":
            assert descriptors_below(io_process.pid, cache) > 0
        else:
            assert descriptors_below(os.getpid(), cache) > 0

    read_once()
    gc.collect()
    first = descriptors_below(io_process.pid, cache)
    for _ in range(3):
        read_once()
        gc.collect()
        assert closes(os.getpid(), cache, 0)
        assert closes(io_process.pid, cache, first)


@pytest.mark.thorough
def test_datasets_share_the_descriptors_of_a_cache(twice: Make, tmp_path: Path) -> None:
    """Each shard may be opened by itself."""
    datasets = [twice("pt", "s3", cache_dir=tmp_path / "cache").remote]
    assert len(list(headrace.DataLoader(datasets[0], batch_size=8))) > 0
    first = descriptors_below(os.getpid(), tmp_path / "cache")
    assert first > 0
    for _ in range(20):
        datasets.append(twice("pt", "s3", cache_dir=tmp_path / "cache").remote)
        assert datasets[-1][0].keys() == datasets[0][0].keys()
    assert descriptors_below(os.getpid(), tmp_path / "cache") <= first
