"""What `torchdata.stateful_dataloader.StatefulDataLoader` does in public, `headrace.DataLoader` does too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace
from tests.pairs import pairwise

from .datasets import StatefulIterator

LOADERS = [StatefulDataLoader, headrace.DataLoader]
WORKERS = [0, 2]

pytestmark = [
    pytest.mark.quick(Loader="DataLoader"),  # torchdata does not change from one edit to the next
    pytest.mark.parametrize("Loader", LOADERS, ids=["torchdata", "headrace"]),
    pytest.mark.filterwarnings("ignore:.*cannot say where it was"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


class StatefulRange(IterableDataset[int]):
    """State in the dataset: how many numbers were taken."""

    def __init__(self, length: int = 26) -> None:
        self.length = length
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        while worker + self.taken * workers < self.length:
            self.taken += 1
            yield worker + (self.taken - 1) * workers
        self.taken = 0

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


class StatefulIterators(IterableDataset[int]):
    """State in the iterator."""

    def __init__(self, length: int = 26) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return StatefulIterator(*((info.id, info.num_workers) if info is not None else (0, 1)), self.length)


class Plain(StatefulIterators):
    """No state at all."""

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__()))


class Table(Dataset[int]):
    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> int:
        return index


DATA = [StatefulRange, StatefulIterators, Plain, Table]
every_data = pytest.mark.parametrize("dataset", DATA)
with_and_without_workers = pytest.mark.parametrize("workers", WORKERS)


def made(Loader: Any, dataset: Any, workers: int, **options: Any) -> Any:
    return Loader(dataset(), batch_size=4, num_workers=workers, **options)


def plain(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.quick(stop=3)
@pytest.mark.parametrize(("dataset", "stop", "workers"), pairwise(DATA, [0, 1, 3, 6], WORKERS))
def test_the_rest_of_the_epoch_and_the_next_one_come(Loader: Any, workers: int, dataset: Any, stop: int) -> None:
    loader = made(Loader, dataset, workers)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    rest, following = plain(iterator), plain(loader)
    resumed = made(Loader, dataset, workers)
    resumed.load_state_dict(state)
    assert plain(resumed) == rest
    assert plain(resumed) == following


@pytest.mark.quick(dataset="StatefulIterators")
@with_and_without_workers
@every_data
def test_after_the_end_comes_a_new_epoch(Loader: Any, workers: int, dataset: Any) -> None:
    loader = made(Loader, dataset, workers)
    whole = plain(loader)
    state = loader.state_dict()
    resumed = made(Loader, dataset, workers)
    resumed.load_state_dict(state)
    assert plain(resumed) == whole


@pytest.mark.quick(dataset="StatefulIterators")
@with_and_without_workers
@every_data
def test_a_state_before_the_first_batch_is_the_beginning(Loader: Any, workers: int, dataset: Any) -> None:
    loader = made(Loader, dataset, workers)
    state = loader.state_dict()
    whole = plain(loader)
    resumed = made(Loader, dataset, workers)
    resumed.load_state_dict(state)
    assert plain(resumed) == whole


@pytest.mark.quick(dataset="StatefulIterators")
@with_and_without_workers
@every_data
def test_a_loaded_state_can_be_saved_again_at_once(Loader: Any, workers: int, dataset: Any) -> None:
    if dataset is Plain and Loader is StatefulDataLoader:
        return  # it forgets how much is to be replayed
    loader = made(Loader, dataset, workers)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = plain(iterator)
    between = made(Loader, dataset, workers)
    between.load_state_dict(state)
    resumed = made(Loader, dataset, workers)
    resumed.load_state_dict(between.state_dict())
    assert plain(resumed) == rest


@with_and_without_workers
@pytest.mark.parametrize("dataset", DATA[:3])
def test_the_state_of_a_stream_passes_through_json(Loader: Any, workers: int, dataset: Any) -> None:
    loader = made(Loader, dataset, workers)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = plain(iterator)
    resumed = made(Loader, dataset, workers)
    resumed.load_state_dict(state)
    assert plain(resumed) == rest


@with_and_without_workers
def test_a_shuffled_order_goes_on(Loader: Any, workers: int) -> None:
    loader = made(Loader, Table, workers, shuffle=True)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = plain(iterator)
    torch.manual_seed(99)
    resumed = made(Loader, Table, workers, shuffle=True)
    resumed.load_state_dict(state)
    assert plain(resumed) == rest


@with_and_without_workers
def test_persistent_workers_take_a_state(Loader: Any, workers: int) -> None:
    options = {"persistent_workers": True} if workers else {}
    loader = made(Loader, StatefulIterators, workers, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = plain(iterator)
    loader.load_state_dict(state)
    assert plain(loader) == rest


@with_and_without_workers
def test_a_state_of_other_worker_counts(Loader: Any, workers: int) -> None:
    """Where torchdata demands equal worker counts, ours goes on."""
    loader = made(Loader, StatefulIterators, workers)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = plain(iterator)
    other = made(Loader, StatefulIterators, 2 - workers)
    if Loader is StatefulDataLoader:
        with pytest.raises((AssertionError, KeyError)):
            other.load_state_dict(state)
            plain(other)
    else:
        other.load_state_dict(state)
        assert plain(other) == rest
