"""Two loaders of one process read the same bucket at once: each gets its order, and one may go."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.loader import read_ahead
from headrace.storage.fetching.endpoint import endpoint
from headrace.storage.fetching.fetcher import PER_RANGE, RangeFetcher
from tests.data.by_url.conftest import Twice
from tests.data.by_url.test_every_form import same
from tests.pairs import pairwise

Make = Callable[..., Twice]


def loader_of(dataset: Any, workers: int, seed: int) -> headrace.DataLoader[Any]:
    words = {}
    if workers:
        words["prefetch_factor"] = 1
    return headrace.DataLoader(dataset, batch_size=8, seed=seed, shuffle=True, num_workers=workers, **words)


@pytest.mark.quick(same_dataset=True, cached=False, workers=(2, 2))
@pytest.mark.parametrize(
    ("cached", "workers", "same_dataset"), pairwise([True, False], [(0, 0), (0, 2), (2, 2)], [False, True])
)
def test_both_get_their_batches(
    twice: Make, tmp_path: Any, workers: tuple[int, int], cached: bool, same_dataset: bool
) -> None:
    words: dict[str, Any] = {}
    if cached:
        words = {"cache_dir": tmp_path / "cache", "cache_limit": "1MB"}
    data = twice("pt", "s3", **words)
    other = data
    if not same_dataset:
        other = twice("pt", "s3", **words)

    loaders = [loader_of(data.remote, workers[0], 3), loader_of(other.remote, workers[1], 4)]
    for epoch in range(2):
        expected = []
        for seed in (3, 4):
            local = loader_of(data.local, 0, seed)
            local.set_epoch(epoch)
            expected.append(list(local))

        found: list[list[Any]] = [[], []]
        for first, second in zip(*loaders, strict=True):
            found[0].append(first)
            found[1].append(second)
        for number in range(2):
            assert len(found[number]) == len(expected[number])
            assert all(map(same, found[number], expected[number]))


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 2])
def test_one_that_is_dropped_does_not_disturb_the_other(twice: Make, workers: int) -> None:
    data = twice("pt", "s3")
    expected = list(loader_of(data.local, 0, 3))
    staying = iter(loader_of(data.remote, workers, 3))
    leaving = loader_of(data.remote, workers, 4)
    iterator = iter(leaving)
    found = []
    for number in range(len(expected)):
        found.append(next(staying))
        if number < 3:
            next(iterator)
        elif number == 3:
            del iterator, leaving
            gc.collect()

    assert next(staying, None) is None
    assert all(map(same, found, expected))


@pytest.mark.thorough
def test_nothing_is_held_for_a_loader_or_stream_that_was_dropped(twice: Make) -> None:
    data = twice("pt", "s3")
    reading = endpoint()
    assert isinstance(reading, RangeFetcher)
    for dataset in (data.remote, data.remote.stream(shuffle=10)):
        before = reading._announced.keys() | {0}
        loader = headrace.DataLoader(dataset, batch_size=8, seed=3)
        iterator = iter(loader)
        next(iterator)
        made = reading._announced.keys() - before
        assert made
        del iterator, loader, dataset
        gc.collect()
        assert without(reading, made)


def without(reading: RangeFetcher, plans: set[int]) -> bool:
    """Waits until plans are dropped: a thread may have held the lock when they were abandoned."""
    waiting = threading.Event()
    for _ in range(1000):
        reading.passed(0, 0)
        if not plans & reading._announced.keys():
            return True
        waiting.wait(0.01)
    return False


@pytest.mark.thorough
def test_one_that_was_dropped_leaves_the_budget_to_others(twice: Make) -> None:
    """Both read through one I/O process."""
    data = twice("pt", "s3")
    staying = loader_of(data.remote, 2, 3)
    batches = iter(staying)
    next(batches)
    remote = staying._session.resources.remote
    assert remote is not None
    client = remote._endpoint
    plans: set[int] = set()
    told: set[int] = set()
    announce = client.announce
    abandon = client.abandon
    client.announce = lambda plan, *words: (plans.add(plan), announce(plan, *words))[1]  # type: ignore[method-assign]
    client.abandon = lambda plan: (told.add(plan), abandon(plan))[1]  # type: ignore[method-assign]
    leaving = loader_of(data.remote, 2, 4)
    iterator = iter(leaving)
    next(iterator)
    assert leaving._session.resources.remote is not None
    assert leaving._session.resources.remote._endpoint is client
    assert plans
    del iterator, leaving
    gc.collect()
    waiting = threading.Event()
    for _ in range(1000):
        if told == plans:
            break
        waiting.wait(0.01)
    assert told == plans
    assert len(list(batches)) == 11


def test_one_that_waits_for_its_next_epoch_leaves_most_of_the_budget(
    twice: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a loader for validation does, while the other one trains."""
    data = twice("pt", "s3")
    size = sum(path.stat().st_size + PER_RANGE for path in Path(data.local.place).glob("*.pt"))
    monkeypatch.setattr(read_ahead, "default_budget", lambda: size)
    waiting = loader_of(data.remote, 0, 3)
    assert len(list(waiting)) == 12
    assert waiting._session.resources.remote is not None
    ahead = waiting._session.resources.remote._ahead
    assert ahead is not None
    assert ahead.coming is not None
    assert 0 < ahead.coming.bytes < size / 2
