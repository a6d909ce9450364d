"""A loader that somebody drops, in the middle or at the end, keeps nothing in memory of what it has read ahead."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.storage.endpoint import endpoint
from headrace.storage.fetcher import Fetcher
from tests.data.by_url.conftest import Twice

Make = Callable[..., Twice]


def comes_down_to(expected: int) -> bool:
    """Waits until this process holds so many bytes: those that are on their way come first."""
    gc.collect()
    fetcher = endpoint()
    assert isinstance(fetcher, Fetcher)
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
