"""Workers that have delivered nothing yet: what they drew when they began comes again after a resume."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import headrace

from .test_dataset_states import CountingRows, Ordered, OwnOrder, lists

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot say where it was")


class OrderedSelf(OwnOrder, IterableDataset[list[int]]):
    """The same, as its own iterator."""

    def __init__(self) -> None:
        self.seed = self.given = 0

    def __iter__(self) -> OrderedSelf:
        OwnOrder.__init__(self)
        return self


WORKERS: list[Any] = [
    {},
    {"persistent_workers": True},
    pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.stress),
    {"backend": "thread"},
    {"backend": "thread", "persistent_workers": True},
]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("crew", WORKERS)
@pytest.mark.parametrize("dataset", [Ordered, OrderedSelf])
@pytest.mark.parametrize("epoch", [0, 1])
def test_iterators_of_workers_that_have_given_nothing_yet_keep_what_they_have_drawn(
    dataset: Any, crew: dict[str, Any], epoch: int
) -> None:
    for stop in range(3):
        straight = headrace.DataLoader(dataset(), batch_size=None, num_workers=3, **crew)
        for _ in range(epoch):
            list(straight)
        iterator = iter(straight)
        for _ in range(stop):
            next(iterator)
        state = straight.state_dict()
        resumed = headrace.DataLoader(dataset(), batch_size=None, num_workers=3, **crew)
        resumed.load_state_dict(state)
        again = iter(resumed)
        if stop == 1:  # and once more, before anything was delivered of the resumed run
            state = resumed.state_dict()
            resumed = headrace.DataLoader(dataset(), batch_size=None, num_workers=3, **crew)
            resumed.load_state_dict(state)
            again = iter(resumed)
        assert list(again) == list(iterator), f"behind {stop} batches"


@pytest.mark.parametrize("crew", [{}, {"backend": "thread"}])
def test_workers_that_have_given_nothing_yet_are_remembered_when_the_loop_has_ended(crew: dict[str, Any]) -> None:
    """The workers drew one order between them, from the seed that they share: each takes its part of it."""
    straight = headrace.DataLoader(SharedOrder(), batch_size=None, num_workers=2, **crew)
    delivered = []
    for sample in straight:
        delivered.append(sample)
        break
    resumed = headrace.DataLoader(SharedOrder(), batch_size=None, num_workers=2, **crew)
    resumed.load_state_dict(straight.state_dict())
    assert sorted([*delivered, *resumed]) == list(range(10))


class SharedOrder(IterableDataset[int]):
    """All workers shuffle the same list in the same way, and each takes its part."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        generator = torch.Generator().manual_seed(info.seed - info.id)
        order = torch.randperm(10, generator=generator).tolist()
        return Listed(order[info.id :: info.num_workers])


class Listed:
    """An iterator over a list, with the rest of it as its state."""

    def __init__(self, rest: list[int]) -> None:
        self.rest = rest

    def __iter__(self) -> Listed:
        return self

    def __next__(self) -> int:
        if not self.rest:
            raise StopIteration
        return self.rest.pop()

    def state_dict(self) -> dict[str, Any]:
        return {"rest": list(self.rest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rest = list(state["rest"])


class DrawnAtStart(CountingRows):
    """A map-style dataset that begins in each worker with what `worker_init_fn` gives it."""

    @staticmethod
    def begin(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.asked = int(torch.randint(10**6, ()))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("crew", WORKERS)
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_copies_of_a_map_style_data_set_that_have_given_nothing_yet_keep_their_states(
    crew: dict[str, Any], stop: int
) -> None:
    def loader() -> Any:
        return headrace.DataLoader(
            DrawnAtStart(), batch_size=2, num_workers=3, worker_init_fn=DrawnAtStart.begin, **crew
        )

    straight = loader()
    iterator = iter(straight)
    for _ in range(stop):
        next(iterator)
    resumed = loader()
    resumed.load_state_dict(straight.state_dict())
    assert lists(resumed) == lists(iterator)


class FailingAtStart(Ordered):
    """Its iterator cannot be made in worker 1."""

    def __iter__(self) -> OwnOrder:
        info = get_worker_info()
        assert info is not None
        if info.id == 1:
            raise ValueError("no iterator")
        return super().__iter__()


class WithoutStateYet(OwnOrder):
    """An iterator that has no state before its first sample, and says so."""

    def state_dict(self) -> dict[str, int]:
        if not self.given:
            raise RuntimeError("not begun")
        return super().state_dict()


class OrderedLater(IterableDataset[list[int]]):
    def __iter__(self) -> OwnOrder:
        return WithoutStateYet()


@pytest.mark.parametrize("crew", [{}, {"backend": "thread"}])
def test_a_worker_without_a_state_at_its_beginning_does_not_hold_up_the_epoch(crew: dict[str, Any]) -> None:
    iterator = iter(headrace.DataLoader(FailingAtStart(), batch_size=None, num_workers=2, **crew))
    assert next(iterator)[1] == 1
    with pytest.raises(ValueError, match="no iterator"):
        next(iterator)
    loader = headrace.DataLoader(OrderedLater(), batch_size=None, num_workers=2, **crew)
    later = iter(loader)
    assert next(later)[1] == 1
    assert len(dict(loader.state_dict()["replicas"]["states"])) == 1


class DyingAtStart(Ordered):
    """Ends the worker that makes its iterator first."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> OwnOrder:
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().__iter__()
        os._exit(3)


def test_a_worker_that_dies_at_its_beginning_is_replaced_and_tells_its_state(tmp_path: Path) -> None:
    loader = headrace.DataLoader(DyingAtStart(str(tmp_path / "died")), batch_size=None, num_workers=2)
    iterator = iter(loader)
    state = loader.state_dict()
    assert loader.faults.restarts == 1
    resumed = headrace.DataLoader(DyingAtStart(str(tmp_path / "died")), batch_size=None, num_workers=2)
    resumed.load_state_dict(state)
    assert list(resumed) == list(iterator)
