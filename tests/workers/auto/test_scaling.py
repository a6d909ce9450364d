"""Workers that come and go while training goes on: batches are the same whatever is decided, and nothing is left."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

import headrace
from headrace.shared_memory.forks import forget_those_gone
from headrace.testing import Faulty, Kill, Raise, descendants, no_leaks
from headrace.workers.auto.scaling import AutoScaler
from headrace.workers.auto.tuner import Choice, Tuner
from tests.workers.scripted import Drawing, scripted

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
    pytest.mark.usefixtures("looked_at_each_time"),
]

UP_AND_DOWN = (3, 0, 2, 0, 4, 1, 0, 1, 4, 2)
AHEAD = (Choice(2, 4), Choice(2, 1), Choice(3, 8), Choice(1, 1), Choice(0, 2), Choice(2, 2))
methods = pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])


def auto(dataset: Any = None, script: Any = UP_AND_DOWN, **options: Any) -> Any:
    """Returns a loader whose workers come and go by a script."""
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": "auto", **options}
    return scripted(headrace.DataLoader(Drawing() if dataset is None else dataset, **options), script)


def fixed(dataset: Any = None, workers: int = 0, **options: Any) -> Any:
    options = {"batch_size": 4, "shuffle": True, "seed": 3, **options}
    return headrace.DataLoader(Drawing() if dataset is None else dataset, num_workers=workers, **options)


def same(batches: Any, expected: Any) -> bool:
    batches, expected = list(batches), list(expected)
    return len(batches) == len(expected) and all(map(torch.equal, batches, expected))


def numbers_of_workers(loader: Any) -> list[str]:
    return [one.text.partition(",")[0] for one in loader.recording.events if one.kind == "decided"]


# -- the same batches --------------------------------------------------------------------------------------------------


@methods
@pytest.mark.parametrize("script", [UP_AND_DOWN, AHEAD, (0,), (8,)], ids=["up and down", "ahead", "none", "many"])
def test_batches_do_not_depend_on_what_is_decided(script: Any, method: str) -> None:
    loader = auto(script=script, multiprocessing_context=method)
    expected = fixed()
    for _ in range(2):
        assert same(loader, expected)
    assert len(numbers_of_workers(loader)) >= len(script) - 1  # one of them may be where it begins
    assert same(fixed(workers=2), fixed())


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"pin_memory": True}, {"batch_size": None}, {"drop_last": True, "batch_size": 7}])
def test_batches_of_every_kind_are_the_same(options: dict[str, Any]) -> None:
    assert same(auto(**options), fixed(**options))


@pytest.mark.thorough
@pytest.mark.parametrize("in_order", [False])
def test_without_order_the_same_batches_come(in_order: bool) -> None:
    found = sorted((batch.tolist() for batch in auto(in_order=in_order)), key=repr)
    assert found == sorted((batch.tolist() for batch in fixed()), key=repr)


@pytest.mark.thorough
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_bad_samples_are_dealt_with_the_same_way(on_error: Any) -> None:
    dataset = Faulty(Drawing(), {key: Raise(ValueError("bad")) for key in (3, 4, 50, 51, 52, 100, 159)})
    loader, expected = (make(dataset, on_error=on_error) for make in (auto, fixed))
    for _ in range(2):
        assert same(loader, expected)
        records = [[(one.key, one.replacement) for one in each.faults.records] for each in (loader, expected)]
        assert records[0] == records[1]
        assert loader.faults.skipped == expected.faults.skipped
    assert loader.stats.bad_samples == 14


def outcomes(loader: Any) -> list[Any]:
    """The batches of an epoch, or what was raised in their place, each with how many were delivered by then."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator).tolist()
        except StopIteration:
            return found
        except ValueError:
            batch = "bad"
        found.append((loader.state_dict()["batches"], batch))


@pytest.mark.parametrize("script", [UP_AND_DOWN, (0,)], ids=["up and down", "none"])
def test_a_sample_that_raises_does_so_in_its_place(script: Any) -> None:
    dataset = Faulty(Drawing(), {key: Raise(ValueError(f"bad {key}")) for key in (3, 70, 71, 120)})
    found = outcomes(auto(dataset, script))
    assert found == outcomes(fixed(dataset))
    assert [number for number, _ in found] == list(range(1, 41))
    assert [batch for _, batch in found].count("bad") >= 3


def test_the_users_own_random_numbers_are_left_alone() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    def seeded() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seeded()
    expected = [draw() for _ in range(40)]
    loader = auto(script=(0, 2, 0))
    iterator = iter(loader)
    next(iterator)
    seeded()
    found = [draw()]
    for _ in iterator:
        found.append(draw())
        assert get_worker_info() is None
    assert found == expected


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [5, 29])
def test_an_epoch_goes_on_elsewhere_from_its_state(stop: int) -> None:
    expected = list(fixed())
    loader = auto()
    iterator = iter(loader)
    assert same(islice(iterator, stop), expected[:stop])
    state = loader.state_dict()
    for other in (auto(script=(0, 3, 1)), auto(script=(2, 0, 2)), fixed(), fixed(workers=2), loader):
        other.load_state_dict(state)
        assert same(other, expected[stop:])
    for begun in (fixed(), fixed(workers=2)):
        iterator = iter(begun)
        assert same(islice(iterator, stop), expected[:stop])
        other = auto()
        other.load_state_dict(begun.state_dict())
        assert same(other, expected[stop:])


@pytest.mark.thorough
def test_epochs_that_are_broken_off_leave_the_next_ones_as_they_are() -> None:
    loader, expected = auto(script=UP_AND_DOWN * 3), fixed()
    for stop in (1, 7, 40, 0, 12, 3):
        assert same(islice(loader, stop), islice(expected, stop))
    assert same(loader, expected)


@pytest.mark.thorough
def test_an_old_iterator_ends_when_a_new_one_begins() -> None:
    """As with workers that are kept: there is one set of them."""
    loader = auto()
    first = iter(loader)
    next(first)
    assert iter(loader) is first
    assert same(first, list(fixed_in_epoch(1)))


def fixed_in_epoch(epoch: int) -> Any:
    loader = fixed()
    loader.set_epoch(epoch)
    return loader


# -- workers that die --------------------------------------------------------------------------------------------------


def killing(loader: Any, every: int) -> Iterator[torch.Tensor]:
    """Yields the batches, and kills one of the workers that there are behind each `every`-th."""
    iterator = iter(loader)
    for number, batch in enumerate(iterator):
        yield batch
        running = [worker for worker in iterator._workers if worker.exitcode is None]
        if number % every == every - 1 and running:
            running[number % len(running)].kill()


@pytest.mark.thorough
def test_workers_that_are_killed_while_others_come_and_go_cost_nothing() -> None:
    dataset = Drawing(400)
    expected = list(fixed(dataset))
    with no_leaks():
        loader = auto(dataset, script=(3, 2, 4, 0, 2, 1, 3, 0, 4, 2, 3) * 2)
        assert same(killing(loader, 7), expected)
        assert loader.faults.restarts >= 3
        del loader


def test_a_sample_that_kills_its_worker_once_is_made_again() -> None:
    dataset = Faulty(Drawing(), {key: Kill() for key in (17, 90)}, times=1)
    loader = auto(dataset, script=(3, 1, 2))  # never none: then it would end the test
    assert same(loader, fixed())
    assert loader.faults.restarts == 2


# -- what is left ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@methods
def test_nothing_is_left_behind(method: str) -> None:
    list(auto(multiprocessing_context=method))  # what libraries open once and keep
    with no_leaks():
        loader = auto(multiprocessing_context=method)
        kept = list(loader)
        iterator = iter(loader)
        next(iterator)
        del loader, iterator, kept


def test_workers_end_with_the_loader_at_once() -> None:
    before = set(descendants())
    gc.disable()
    try:
        loader = auto(script=(2,))
        list(islice(loader, 12))
        assert set(descendants()) - before
        del loader
        assert set(descendants()) - before == set()
    finally:
        gc.enable()


def test_workers_that_are_retired_have_ended_when_they_are() -> None:
    loader = auto(script=(4, 1))
    iterator = iter(loader)
    processes: dict[int, Any] = {}
    for _ in iterator:
        processes.update(dict(enumerate(iterator._workers)))
    retired = [one.worker for one in loader.recording.events if one.kind == "retired"]
    assert sorted(retired) == [1, 2, 3]  # type: ignore[type-var]
    assert [processes[number].exitcode for number in (1, 2, 3)] == [0, 0, 0]
    assert processes[0].exitcode is None
    assert [worker.reaped for worker in iterator.executor.pool.workers] == [False, True, True, True]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_coming_and_going_takes_no_further_descriptors_or_memory() -> None:
    def taken() -> tuple[int, int, int]:
        forget_those_gone()  # a worker may have ended after the next one was forked
        assert loader._session.resources.arena is not None
        return len(list(Path("/proc/self/fd").iterdir())), len(descendants()), loader._session.resources.arena._in_file

    loader = headrace.DataLoader(Drawing(800), 4, num_workers="auto")
    iterator = iter(scripted(loader, (4, 1) * 12, every=8))
    at_the_bottom = []
    for _ in iterator:
        workers = iterator.executor.pool.workers
        if len(workers) == 4 and sum(not worker.reaped for worker in workers) == 1:
            at_the_bottom.append(taken())
    assert len(numbers_of_workers(loader)) == 24
    assert len(at_the_bottom) > 4
    assert all(last <= first for last, first in zip(at_the_bottom[-1], at_the_bottom[0], strict=True))


# -- what is told ------------------------------------------------------------------------------------------------------


def test_the_loader_and_its_record_tell_the_present_setting(caplog: pytest.LogCaptureFixture) -> None:
    loader = auto(script=(3, Choice(2, 8), 0))
    assert (loader.setting.num_workers, loader.setting.prefetch_factor) == (1, 2)
    seen = []
    with caplog.at_level(logging.INFO, "headrace"):
        for _ in loader:
            setting = loader.recording.setting
            seen.append((loader.setting.num_workers, loader.setting.prefetch_factor))
            assert setting.num_workers == loader.setting.num_workers
            assert setting.free
    assert list(dict.fromkeys(seen)) == [(1, 2), (3, 2), (2, 8), (0, 2)]
    assert loader.num_workers == 1  # what was asked for is not overwritten
    said = [record.getMessage() for record in caplog.records]
    expected = ["num_workers=3, prefetch_factor=2", "num_workers=2, prefetch_factor=8", "num_workers=0"]
    assert len(said) == len(expected)
    for text, words in zip(said, expected, strict=True):
        assert words in text
        assert "the script says so" in text
        assert "test_scaling.py:" in text
    kinds = [(one.kind, one.worker) for one in loader.recording.events]
    assert [kind for kind in kinds if kind[0] == "added"] == [("added", 1), ("added", 2)]
    assert sorted(kind for kind in kinds if kind[0] == "retired") == [("retired", 0), ("retired", 1), ("retired", 2)]
    assert [one.text for one in loader.recording.events if one.kind == "decided"] == [
        text.partition(": ")[2].partition(": ")[2] for text in said
    ]


def test_each_batch_tells_who_made_it() -> None:
    loader = auto(script=(0, 3))
    list(loader)
    rows = loader.recording.batches
    assert rows["number"].tolist() == list(range(40))
    assert rows["samples"].tolist() == [4] * 40
    assert {-1, 0, 1, 2} == set(rows["worker"].tolist())
    here = rows["worker"] == -1
    assert (rows["posted"] != rows["posted"])[here].all()
    assert (rows["begun"][here] >= rows["asked"][here]).all()
    assert (rows["bytes"] == 4 * 1000 * 8).all()
    assert loader.recording.epochs[0].workers == 1


# -- loading and copying -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))], ids=["copy", "pickle"])
def test_a_copy_decides_for_itself(kept: Callable[[Any], Any]) -> None:
    loader = headrace.DataLoader(Drawing(), 4, num_workers="auto")
    loader._session.tuner.now = Choice(0, 2)
    other = kept(loader)
    assert type(other._session.tuner) is Tuner
    assert other._session.tuner is not loader._session.tuner
    assert (other.num_workers, other._session.tuner.now, other._session.tuner.limits) == (
        1,
        Choice(1, 2),
        loader._session.tuner.limits,
    )
    assert same(other, headrace.DataLoader(Drawing(), 4, seed=0))
    assert isinstance(other._iterator.executor, AutoScaler)


def test_a_loader_without_workers_at_the_moment_goes_on_deciding() -> None:
    loader = auto(script=(0,))
    list(islice(loader, 12))
    assert loader.setting.num_workers == 0
    state = loader.state_dict()
    loader._session.tuner._script.append(Choice(3, 2))
    loader.load_state_dict(state)
    assert same(loader, list(fixed())[12:])
    assert loader.setting.num_workers == 3
    assert same(loader, fixed_in_epoch(1))


def test_loaders_without_workers_have_none_in_their_next_epoch() -> None:
    loader = auto(script=(0,))
    list(loader)
    before = len(loader.recording.events)
    assert same(loader, fixed_in_epoch(1))
    assert len(loader.recording.events) == before
    assert (loader.recording.batches["worker"][40:] == -1).all()
