"""Names that headrace looks for, with another meaning: loops go on as torch's; who asks for a state is told."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import headrace
from headrace import DataLoader
from headrace.core.text import log_once

from .other_protocols import (
    LENGTH,
    AllAttributes,
    EpochWithStage,
    FailingRows,
    FailingSampler,
    FailingStream,
    Holder,
    IteratorWithArguments,
    Module,
    ModuleOfItsOwn,
    OtherMethods,
    OtherValues,
    Rows,
    RowsDieOnce,
    RowsWithArguments,
    SamplerWithArguments,
    SamplerWithOtherWords,
    StreamDiesOnce,
    StreamWithArguments,
)

ALL = list(range(LENGTH))

WAYS: dict[str, dict[str, Any]] = {
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "thread": {"num_workers": 1, "backend": "thread"},
    "fork, seed": {"num_workers": 1, "seed": 0},
    "seed": {"seed": 0},
    "fork": {"num_workers": 1},
    "here": {},
}
every_way = pytest.mark.parametrize("way", WAYS)

OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "stream": lambda: {"dataset": StreamWithArguments()},
    "rows": lambda: {"dataset": RowsWithArguments()},
    "iterator": lambda: {"dataset": IteratorWithArguments()},
    "sampler": lambda: {"dataset": Rows(), "sampler": SamplerWithArguments()},
    "sampler with a state": lambda: {"dataset": Rows(), "sampler": SamplerWithOtherWords()},
    "set_epoch": lambda: {"dataset": EpochWithStage()},
    "values": lambda: {"dataset": OtherValues()},
    "methods": lambda: {"dataset": OtherMethods()},
    "a module": lambda: {"dataset": Module()},
    "a module's own": lambda: {"dataset": ModuleOfItsOwn()},
    "a holder of tensors": lambda: {"dataset": Holder()},
    "a proxy": lambda: {"dataset": AllAttributes()},
    "a stream whose state raises": lambda: {"dataset": FailingStream()},
    "a stream whose state stops": lambda: {"dataset": FailingStream(how="stops")},
    "a stream whose state cannot be pickled": lambda: {"dataset": FailingStream(how="lock")},
    "rows whose state raises": lambda: {"dataset": FailingRows()},
    "rows whose state stops": lambda: {"dataset": FailingRows(how="stops")},
    "rows whose state cannot be pickled": lambda: {"dataset": FailingRows(how="lock")},
    "a sampler whose state raises": lambda: {"dataset": Rows(), "sampler": FailingSampler()},
}


def numbers(batches: Any) -> list[int]:
    return sorted(number for batch in batches for number in batch.tolist())


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each test hear what is said once in a process."""
    monkeypatch.setattr(log_once, "_said", set())


@every_way
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.quick(way=["here", "fork"])
def test_a_loop_gets_all_samples_in_each_epoch(other: str, way: str) -> None:
    loader = DataLoader(batch_size=3, **OTHERS[other](), **WAYS[way])
    loader.set_epoch(2)
    assert [numbers(loader) for _ in range(2)] == [ALL, ALL]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("other", ["stream", "iterator", "a stream whose state cannot be pickled"])
def test_workers_that_live_on_go_on_without_a_state(other: str, persistent: bool) -> None:
    loader = DataLoader(batch_size=3, num_workers=1, persistent_workers=persistent, **OTHERS[other]())
    assert [numbers(loader) for _ in range(3)] == [ALL] * 3


def error_of_state(loader: Any) -> str:
    with pytest.raises(headrace.core.errors.StateError) as caught:
        loader.state_dict()
    return str(caught.value)


@pytest.mark.parametrize("way", ["thread", "fork", "here"])
@pytest.mark.parametrize(
    ("other", "found"),
    [
        ("stream", "StreamWithArguments.state_dict(num_samples, from_beginning)"),
        ("rows", "RowsWithArguments.state_dict(num_samples, from_beginning)"),
        ("iterator", "PlainIterator.state_dict(rank)"),
        ("sampler", "SamplerWithArguments.state_dict(iteration, num_processes)"),
        ("a stream whose state raises", "FailingStream.state_dict() raised NotImplementedError: no state yet"),
        ("rows whose state stops", "FailingRows.state_dict() raised StopIteration"),
        ("a sampler whose state raises", "FailingSampler.state_dict() raised RuntimeError: not while it runs"),
    ],
)
def test_who_asks_for_a_state_that_is_not_there_is_told_why(other: str, found: str, way: str) -> None:
    loader = DataLoader(batch_size=3, **OTHERS[other](), **WAYS[way])
    batches = iter(loader)
    next(batches)
    error = error_of_state(loader)
    assert found in error
    assert "fix:" in error
    assert len(list(batches)) == 2


@pytest.mark.parametrize("other", ["a stream whose state cannot be pickled", "rows whose state cannot be pickled"])
def test_a_state_that_a_worker_cannot_pickle_is_told(other: str) -> None:
    loader = DataLoader(batch_size=3, num_workers=1, **OTHERS[other]())
    batches = iter(loader)
    next(batches)
    assert "cannot pickle '_thread.lock' object" in error_of_state(loader)


@pytest.mark.parametrize("way", ["thread", "fork", "here"])
@pytest.mark.parametrize("dataset", [FailingStream, FailingRows])
def test_a_state_that_is_there_later_is_taken_then(dataset: Any, way: str) -> None:
    loader = DataLoader(dataset(until=4), batch_size=2, **WAYS[way])
    batches = iter(loader)
    first = [*next(batches), *next(batches)]
    assert "no state yet" in error_of_state(loader)
    first += next(batches)
    state = loader.state_dict()
    again = DataLoader(dataset(until=4), batch_size=2, **WAYS[way])
    again.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [*map(int, first), *numbers(again)] == ALL


@pytest.mark.filterwarnings("ignore:.*cannot say where it was")
@pytest.mark.parametrize("dataset", [StreamDiesOnce, RowsDieOnce])
def test_a_worker_that_dies_makes_its_batches_again_also_without_a_state(dataset: Any, tmp_path: Path) -> None:
    loader = DataLoader(dataset(tmp_path / "died"), batch_size=2, num_workers=1)
    assert numbers(loader) == ALL
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("dataset", [Module, ModuleOfItsOwn, Holder])
def test_weights_are_no_part_of_a_state(dataset: Any) -> None:
    for words in ({}, {"num_workers": 1}):
        loader = DataLoader(dataset(), batch_size=3, **words)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        assert state["replicas"] is None
        assert state["datasets"] is None
        again = DataLoader(dataset(), batch_size=3, **words)
        again.load_state_dict(state)
        assert numbers(again) == ALL[3:]


def test_the_log_says_once_what_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        for _ in range(2):
            for words in ({"dataset": EpochWithStage()}, {"dataset": Module()}, *(OTHERS[name]() for name in OTHERS)):
                numbers(DataLoader(batch_size=3, seed=0, **words))

    said_of = [record.getMessage().removeprefix("headrace: ").partition(" ")[0] for record in caplog.records]
    assert sorted(said_of) == [
        "EpochWithStage.set_epoch",
        "FailingRows",
        "FailingStream",
        "IteratorWithArguments",
        "RowsWithArguments.state_dict(num_samples,",
        "SamplerWithArguments.set_epoch",
        "SamplerWithArguments.state_dict(iteration,",
        "SamplerWithOtherWords.set_epoch",
        "StreamWithArguments.state_dict(num_samples,",
    ]


def test_an_empty_state_begins_anew_whatever_the_dataset_has() -> None:
    loader = DataLoader(StreamWithArguments(), batch_size=3)
    next(iter(loader))
    loader.load_state_dict({})
    assert numbers(loader) == ALL


def test_a_collate_function_with_a_memory_of_its_own_collates() -> None:
    class Adding:
        memory = headrace.core.batch_memory.OwnMemory()

        def __call__(self, samples: list[Any]) -> int:
            return int(sum(sample[0] for sample in samples))

    loader = DataLoader(TensorDataset(torch.arange(LENGTH)), batch_size=4, collate_fn=Adding())
    assert list(loader) == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7]


def test_an_index_with_positions_of_another_kind_is_an_index() -> None:
    class Index(list[int]):
        positions = "no"

    class Draws(Rows):
        def __getitem__(self, index: int) -> int:
            return int(headrace.rng().integers(1 << 40))

    orders = [[[3, 1], [2]], [Index([3, 1]), Index([2])]]
    plain, own = (numbers(DataLoader(Draws(), batch_sampler=order, seed=0)) for order in orders)
    assert own == plain


def test_the_step_of_a_pipeline_may_have_these_names() -> None:
    class Doubling:
        random = takes_encoded = fingerprint = shape = dtype = "no"

        def into(self, value: Any) -> None:
            raise AssertionError("called")

        def __call__(self, value: Any) -> int:
            return int(2 * value)

    data = headrace.Staged(OtherValues(), get_item_transform=Doubling())
    assert numbers(DataLoader(data, batch_size=3)) == [2 * number for number in ALL]
    assert headrace.Staged.of(OtherValues()).ragged == "pad"


def test_a_bad_sample_of_such_a_dataset_is_skipped() -> None:
    class Bad(OtherMethods):
        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise ValueError("bad")
            return index

    loader = DataLoader(Bad(), batch_size=3, on_error="skip")
    assert numbers(loader) == [number for number in ALL if number != 2]


class Own(Dataset[int]):
    """Has all that headrace knows, as headrace knows it."""

    draws = False

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        raise AssertionError("called")

    def fetch_batch(self, keys: Any, out: Any) -> torch.Tensor:
        return torch.as_tensor(keys) + 100


class OwnStream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return OwnIterator()


class OwnIterator:
    left = LENGTH

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        raise AssertionError("called")

    def next_batch(self, count: int, out: Any) -> tuple[torch.Tensor, int]:
        count = min(count, self.left)
        self.left -= count
        return torch.full((count,), 7), count


def test_what_answers_as_described_is_still_asked() -> None:
    assert numbers(DataLoader(Own(), batch_size=3)) == [number + 100 for number in ALL]
    assert numbers(DataLoader(OwnStream(), batch_size=3)) == [7] * LENGTH
