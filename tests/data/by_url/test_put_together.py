"""Datasets by URL as parts of torch's own that put datasets together: the same batches, and read ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, StackDataset, Subset

import headrace
from headrace.epoch.look_ahead import AT_ONCE
from headrace.loader.remote_datasets import lies_elsewhere, place_of, ranges_of
from tests.data.by_url.conftest import ROWS, Twice
from tests.data.by_url.test_every_form import same
from tests.servers.faulty import FaultyServer

Make = Callable[..., Twice]
PutTogether = Callable[[Dataset[Any], Dataset[Any]], Any]

WAYS: dict[str, PutTogether] = {
    "concat": lambda one, other: ConcatDataset([one, other]),
    "sum": lambda one, other: one + other + one,
    "part of a concat": lambda one, other: Subset(ConcatDataset([one, other]), range(2 * ROWS - 1, 0, -2)),
    "concat of a part": lambda one, other: ConcatDataset([other, Subset(one, [3, 5, -1])]),
    "stack": lambda one, other: StackDataset(one, other),
    "stack with names": lambda one, other: StackDataset(a=one, b=other),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.quick(workers=0, way=["part of a concat", "stack"])
def test_batches_are_the_same_and_what_comes_is_asked_for(
    twice: Make, faulty_server: FaultyServer, way: str, workers: int
) -> None:
    """One of the two datasets lies elsewhere."""
    data = twice("pt", "s3")
    local = WAYS[way](data.local, data.local)
    mixed = WAYS[way](data.remote, data.local)
    words: dict[str, Any] = {"batch_size": 4, "seed": 3, "shuffle": True, "num_workers": workers}
    loader = headrace.DataLoader(mixed, **words)
    before = len(faulty_server.asked())
    batches = iter(loader)
    expected = iter(headrace.DataLoader(local, **words))
    for _ in range(-(-len(loader) // AT_ONCE)):
        assert same_in(next(batches), next(expected))

    # A few batches were read. What the others need comes by itself.
    waiting = threading.Event()
    for _ in range(1000):
        if len(faulty_server.asked()) - before >= len(set(objects_of(mixed))):
            break
        waiting.wait(0.01)
    else:
        pytest.fail(f"{len(faulty_server.asked()) - before} requests")

    for one, other in zip(batches, expected, strict=True):
        assert same_in(one, other)
    reads = loader.stats.remote
    assert reads is not None and reads.is_read_ahead
    assert reads.place == data.url


def same_in(one: Any, other: Any) -> bool:
    """Tells whether batches are the same, of which some are lists."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_in, one, other))
    return same(one, other)


def objects_of(dataset: Any) -> list[str]:
    """Returns the objects of which samples of a dataset are."""
    ranges = ranges_of(dataset)
    assert ranges is not None
    return [wanted.object.key for wanted in ranges(np.arange(len(dataset)))]


def test_ranges_are_those_of_the_parts(twice: Make) -> None:
    data = twice("npy", "http")
    remote = ranges_of(data.remote)
    assert remote is not None
    both = ranges_of(ConcatDataset([data.local, data.remote, data.remote]))
    assert both is not None
    keys = np.array([0, ROWS - 1, ROWS, ROWS + 7, 2 * ROWS - 1, 2 * ROWS, -1])
    assert both(keys) == remote(np.array([0, 7, ROWS - 1])) + remote(np.array([0, ROWS - 1]))
    assert both(keys[:2]) == []


def test_nothing_is_known_of_what_lies_here_or_of_a_class_of_the_users(twice: Make) -> None:
    class Mine(ConcatDataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index // 2)

    data = twice("npy", "http")
    assert ranges_of(ConcatDataset([data.local, data.local])) is None
    assert ranges_of(StackDataset(data.local)) is None
    mine = Mine([data.local, data.remote])
    assert ranges_of(mine) is None
    assert lies_elsewhere(mine)
    assert place_of(mine) == data.url


def test_chained_streams_lie_elsewhere(twice: Make) -> None:
    data = twice("npy", "http")
    chained = ChainDataset([data.local.stream(), data.remote.stream()])
    loader = headrace.DataLoader(chained, batch_size=8)
    assert len(list(loader)) == -(-2 * ROWS // 8)
    assert loader.stats.remote is not None
    assert loader.stats.remote.bytes > 0
