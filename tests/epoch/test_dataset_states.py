"""Datasets with a state of their own: nothing is lost at the ends of epochs, nor before a worker's first batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import headrace

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot say where it was")


class CountingEpochs(IterableDataset[list[int]]):
    """Samples tell how many epochs this copy has ended, and what it was given before the first."""

    def __init__(self, given: int = 0) -> None:
        self.epochs = 0
        self.given = given
        self.next = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        while self.next * workers + worker < 12:
            number = self.next * workers + worker
            self.next += 1
            yield torch.tensor([number, self.epochs, self.given])
        self.next = 0
        self.epochs += 1

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs, "given": self.given, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]
        self.given = state["given"]
        self.next = state["next"]


class CountingRows(Dataset[torch.Tensor]):
    """A map-style dataset that counts what it was asked for, over all epochs."""

    def __init__(self, given: int = 0) -> None:
        self.asked = given

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.tensor([index, self.asked])

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


CREWS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "persistent_workers": True, "backend": "thread"},
]


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.quick(dataset="CountingRows", batch_size=5, crew={"num_workers": 0})
@pytest.mark.parametrize("dataset", [CountingEpochs, CountingRows])
@pytest.mark.parametrize("crew", CREWS)
@pytest.mark.parametrize("batch_size", [pytest.param(2, marks=pytest.mark.stress), 5])
def test_all_epochs_are_those_of_a_run_without_interruption(dataset: Any, crew: Any, batch_size: int) -> None:
    """Wherever the state is taken: before the first batch, within an epoch, behind its last batch, at its end."""

    def loader(given: int) -> Any:
        return headrace.DataLoader(dataset(given), batch_size=batch_size, **crew)

    for epoch in range(2):
        for stop in (*range(len(lists(loader(0))) + 1), None):
            straight = loader(7)
            epochs, state = [], None
            for number in range(4):
                batches, iterator = [], iter(straight)
                while True:
                    if number == epoch and len(batches) == stop:
                        state = straight.state_dict()
                    batch = next(iterator, None)
                    if batch is None:
                        break
                    batches.append(batch.tolist())
                if number == epoch and stop is None:
                    state = straight.state_dict()
                epochs.append(batches)
            over = stop is None or stop == len(epochs[epoch])
            rest = ([] if over else [epochs[epoch][stop:]]) + epochs[epoch + 1 :]
            resumed = loader(7 if crew["num_workers"] else 0)  # workers get copies of the loader's own dataset
            resumed.load_state_dict(state)
            assert [lists(resumed) for _ in rest] == rest, f"epoch {epoch}, behind {stop} batches"


def test_a_state_before_the_first_epoch_holds_the_data_set_s() -> None:
    loader = headrace.DataLoader(CountingEpochs(5), batch_size=2)
    state = loader.state_dict()
    again = headrace.DataLoader(CountingEpochs(), batch_size=2)
    again.load_state_dict(state)
    first = lists(again)
    assert first == lists(loader)
    assert {row[2] for batch in first for row in batch} == {5}


class StateWhileIterated(IterableDataset[int]):
    """Has a state only once it is iterated, as its own iterator."""

    def __iter__(self) -> StateWhileIterated:
        self.given = 0
        return self

    def __next__(self) -> int:
        if self.given >= 6:
            raise StopIteration
        self.given += 1
        return self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_can_be_taken_of_a_data_set_that_has_none_before_it_is_iterated(workers: int) -> None:
    def loader() -> Any:
        return headrace.DataLoader(StateWhileIterated(), num_workers=workers)

    straight = loader()
    fresh = straight.state_dict()
    iterator = iter(straight)
    head = [next(iterator).tolist()]
    for state, before in ((fresh, []), (straight.state_dict(), head)):
        resumed = loader()
        resumed.load_state_dict(state)
        assert before + lists(resumed) == lists(loader())


class OwnOrder:
    """An iterator that decides on its order when it is made."""

    def __init__(self) -> None:
        self.seed = int(torch.randint(10**6, ()))
        self.given = 0

    def __iter__(self) -> OwnOrder:
        return self

    def __next__(self) -> list[int]:
        if self.given >= 4:
            raise StopIteration
        self.given += 1
        return [self.seed, self.given]

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed = state["seed"]
        self.given = state["given"]


class Ordered(IterableDataset[list[int]]):
    def __iter__(self) -> OwnOrder:
        return OwnOrder()


def test_an_iterator_that_has_given_nothing_yet_keeps_what_it_has_drawn() -> None:
    straight = headrace.DataLoader(Ordered(), batch_size=None)
    iterator = iter(straight)
    state = straight.state_dict()
    resumed = headrace.DataLoader(Ordered(), batch_size=None)
    resumed.load_state_dict(state)
    assert list(resumed) == list(iterator)


def test_workers_that_resume_before_their_first_batch_have_their_own_numbers() -> None:
    """The state of the main process's dataset is not theirs: with its generator all would draw the same."""

    class Drawing(CountingRows):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randint(10**6, ())

        def state_dict(self) -> dict[str, Any]:
            return {"generator": torch.get_rng_state()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            torch.set_rng_state(state["generator"])

    def loader() -> Any:
        generator = torch.Generator().manual_seed(4)
        return headrace.DataLoader(Drawing(), batch_size=2, num_workers=2, generator=generator)

    straight = loader()
    state = straight.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert lists(resumed) == lists(straight)


def test_samples_count_on_after_a_resume() -> None:
    loader = headrace.DataLoader(CountingEpochs(), batch_size=2, num_workers=2)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    resumed = headrace.DataLoader(CountingEpochs(), batch_size=2, num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    following = iter(resumed)
    next(following)
    assert resumed.state_dict()["samples"] == 6
    assert resumed.state_dict()["batches"] == 3
