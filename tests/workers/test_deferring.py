"""`stragglers="defer"`: a batch that is late comes later, and is not lost."""

from __future__ import annotations

import json
import multiprocessing
import threading
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

import headrace
from headrace.core.errors import UsageError
from headrace.epoch.deferral import FARTHEST

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WAITING = 30.0
"""Seconds for which a sample waits to be let through; then it raises."""

BACKENDS = ["process", "thread"]


class Held(Dataset[Any]):
    """Some samples wait until the test lets them through. Each has a random number of its own."""

    def __init__(self, length: int, held: set[int], backend: str, bad: int | None = None) -> None:
        self.length = length
        self.held = held
        self.bad = bad
        self.passes: Any = threading.Event()
        if backend == "process":
            self.passes = multiprocessing.get_context("fork").Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> tuple[int, int]:
        if key in self.held and not self.passes.wait(WAITING):
            raise TimeoutError(f"sample {key} waited in vain")
        if key == self.bad:
            raise ValueError(f"sample {key} is bad")
        return key, int(headrace.rng().integers(1 << 40))


def loader(dataset: Dataset[Any], **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "seed": 7, "stragglers": "defer", **options}
    return headrace.DataLoader(dataset, **given)


def rows(batches: list[Any]) -> list[tuple[int, int]]:
    """Returns all samples of some batches: key and random number."""
    return [row for keys, numbers in batches for row in zip(keys.tolist(), numbers.tolist(), strict=True)]


def in_order(length: int, **options: Any) -> list[Any]:
    """Returns the batches of an epoch in which nothing is late."""
    return list(loader(Held(length, set(), "thread"), num_workers=0, stragglers="wait", **options))


def same(some: list[Any], others: list[Any]) -> bool:
    return rows(some) == rows(others) and [len(keys) for keys, _ in some] == [len(keys) for keys, _ in others]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_is_late_comes_as_soon_as_it_is_ready(backend: str, shuffle: bool) -> None:
    expected = in_order(82, shuffle=shuffle)
    late = int(expected[2][0][1])
    dataset = Held(82, {late}, backend)
    batches = []
    for batch in loader(dataset, backend=backend, shuffle=shuffle):
        batches.append(batch)
        if len(batches) == 9:  # seven of them lie behind the one that waits
            dataset.passes.set()
    assert same(sorted(batches[:-1], key=str), sorted(expected[:-1], key=str))
    assert same(batches[-1:], expected[-1:])  # it is shorter, and stays the last one
    place = [late in keys.tolist() for keys, _ in batches].index(True)
    assert 9 <= place < 20


class Even(Dataset[int]):
    """Samples that take as long as others, but for the first, which takes a little longer."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: int) -> int:
        threading.Event().wait(0.2 if key else 0.22)
        return key


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_takes_about_as_long_as_others_keeps_its_place(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a worker may be late by a tenth of a second. Here that does not count.
    monkeypatch.setattr("headrace.workers.stragglers.turns.SLACK", 5.0)
    batches = list(loader(Even(), backend=backend, batch_size=1))
    assert [key for batch in batches for key in batch.tolist()] == [*range(6)]


def test_a_batch_is_waited_for_in_the_end() -> None:
    dataset = Held(4 * (FARTHEST + 20), {1}, "process")
    batches = []
    for batch in loader(dataset):
        batches.append(batch)
        if len(batches) == FARTHEST:
            dataset.passes.set()
    assert 1 in batches[FARTHEST][0].tolist()
    assert sorted(rows(batches)) == sorted(rows(in_order(len(dataset))))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [4, 3])
def test_a_state_holds_the_batches_that_are_late(backend: str, size: int) -> None:
    """It goes through JSON, and another number of workers goes on, with batches of another size too."""
    dataset = Held(80, {6, 21}, backend)
    first = loader(dataset, backend=backend, num_workers=3, shard=headrace.Shard(0, 1))
    iterator = iter(first)
    batches = [next(iterator) for _ in range(6)]
    state = json.loads(json.dumps(first.state_dict()))
    dataset.passes.set()
    assert state["deferred"]

    assert not {6, 21} & {key for key, _ in rows(batches)}
    resumed = loader(
        Held(80, set(), backend), num_workers=2, batch_size=size, shard=headrace.Shard(0, 1), stragglers="wait"
    )
    resumed.load_state_dict(state)
    rest = list(resumed)
    assert sorted(rows(batches + rest)) == sorted(rows(in_order(80)))
    del iterator


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_never_comes_ends_in_the_error_of_timeout(backend: str) -> None:
    dataset = Held(24, {6}, backend)
    keys: list[int] = []
    iterator = iter(loader(dataset, backend=backend, timeout=1))
    with pytest.raises(RuntimeError, match="timed out after 1"):
        for batch, _ in iterator:
            keys += batch.tolist()
    dataset.passes.set()  # the iterator waits for its workers when it goes
    assert {0, 1, 2, 3, 8, 9, 10, 11} <= set(keys) <= {*range(24)} - {4, 5, 6, 7}
    assert len(set(keys)) == len(keys)


def test_other_ranks_go_on_from_a_merged_state() -> None:
    """Two ranks, each with a batch that is late; then three, with batches of another size."""
    states = []
    delivered = []
    for rank in range(2):
        dataset = Held(120, {rank, 12 + rank}, "process")
        one = loader(dataset, num_workers=3, shard=headrace.Shard(rank, 2))
        iterator = iter(one)
        delivered += [next(iterator) for _ in range(5)]
        states.append(one.state_dict())
        dataset.passes.set()
        del iterator

    assert all(state["deferred"] for state in states)
    merged = json.loads(json.dumps(headrace.merge_states(states)))
    for rank in range(3):
        one = loader(Held(120, set(), "process"), batch_size=5, shard=headrace.Shard(rank, 3))
        one.load_state_dict(merged)
        delivered += list(one)
    # The last step of three ranks may repeat samples, with other random numbers, so that all have equally many.
    assert set(rows(in_order(120))) <= set(rows(delivered))
    assert len(rows(delivered)) <= 122


def test_an_error_comes_in_its_turn_or_later() -> None:
    """The batch that raises takes no other's turn, and costs only itself."""
    dataset = Held(40, {1}, "process", bad=14)
    iterator = iter(loader(dataset))
    batches = [next(iterator) for _ in range(2)]
    assert not {1, 14} & {key for key, _ in rows(batches)}
    dataset.passes.set()
    with pytest.raises(ValueError, match="sample 14 is bad"):
        batches += iterator
    batches += iterator
    assert sorted(rows(batches)) == sorted(row for row in rows(in_order(40)) if row[0] not in range(12, 16))


def test_nothing_is_deferred_where_nothing_is_late() -> None:
    assert same(list(loader(Held(40, set(), "thread"), num_workers=0)), in_order(40))
    one_worker = loader(Held(40, set(), "process"), num_workers=1)
    assert same(list(one_worker), in_order(40))
    assert one_worker.state_dict()["deferred"] == []


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Counting(Held):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("dataset", "options", "found"),
    [
        (Held(4, set(), "thread"), {"seed": None}, "stragglers='defer' needs seed="),
        (Held(4, set(), "thread"), {"in_order": False}, "in_order=False"),
        (Held(4, set(), "thread"), {"stragglers": "drop"}, "'drop'"),
        (Stream(), {}, "Stream"),
        (Counting(4, set(), "thread"), {}, "a state_dict"),
    ],
)
def test_what_cannot_be_deferred_is_refused(dataset: Any, options: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError, match="stragglers") as caught:
        loader(dataset, **options)
    assert found in str(caught.value)


def test_a_state_of_the_beginning_of_an_epoch_has_nothing_that_is_late() -> None:
    dataset = Held(16, {0}, "process")
    one = loader(dataset)
    batches = []
    for batch in one:
        batches.append(batch)
        dataset.passes.set()
    assert one.state_dict()["finished"]
    assert one.state_dict()["deferred"] == []
    assert sorted(rows(batches)) == sorted(rows(in_order(16)))
